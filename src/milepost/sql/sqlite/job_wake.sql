-- Sends on what sleeps and whose time has come; broker queues wait to be dispatched. What is to be
-- retried and says not when (a move by hand) goes on at once; asked for apart, so that nobody walks
-- over all that sleeps.
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = CASE state WHEN 'WAITING' THEN 'wake' ELSE 'due' END,
       version = version + 1, actor = :actor, detail = NULL, queued_seq = {now}
 WHERE rowid IN (
         SELECT rowid FROM (SELECT rowid FROM job
                             WHERE state IN ('WAITING', 'RETRYING') AND due_at <= {now}
                             ORDER BY due_at
                             LIMIT :most)
          UNION ALL
         SELECT rowid FROM job
          WHERE state IN ('WAITING', 'RETRYING') AND due_at IS NULL AND state = 'RETRYING'
          LIMIT :most)
RETURNING id
