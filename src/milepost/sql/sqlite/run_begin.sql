UPDATE run
   SET state = 'RUNNING', move = 'begin', version = version + 1, actor = :actor, detail = NULL,
       started_at = coalesce(started_at, {now})
 WHERE id IN (SELECT value FROM json_each(:id)) AND state = 'QUEUED'
RETURNING id
