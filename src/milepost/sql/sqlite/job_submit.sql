-- Releases a held job; where it goes depends on whether its time has come.
UPDATE job
   SET state = CASE WHEN due_at > {now} THEN 'WAITING' ELSE 'QUEUED' END, move = 'submit',
       version = version + 1, actor = :actor, detail = NULL, queued_seq = {now}
 WHERE id IN (SELECT value FROM json_each(:id)) AND state = 'CREATED'
RETURNING id
