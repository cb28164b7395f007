-- Sends on what sleeps and whose time has come; broker queues wait to be dispatched.
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = CASE state WHEN 'WAITING' THEN 'wake' ELSE 'due' END,
       version = version + 1, actor = :actor, detail = NULL, queued_seq = {now}
 WHERE rowid IN (
         SELECT rowid FROM job
          WHERE state IN ('WAITING', 'RETRYING')
            AND (due_at <= {now} OR (due_at IS NULL AND state = 'RETRYING'))
          ORDER BY due_at
          LIMIT :most)
RETURNING id
