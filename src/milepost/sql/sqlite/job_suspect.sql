-- The first suspect in line: a job whose loss would end it, because it was lost so often, and which
-- therefore runs with no other in its process. There are few, and mostly none: an index has them, and
-- those whose budget is spent.
SELECT queue, priority, queued_seq
  FROM job INDEXED BY job_spent
 WHERE (losses - poison_limit >= -1 OR errors + losses - retries > 0
        OR (losses > 0 AND errors + losses - retries = 0))
   AND state IN ('WAITING', 'READY', 'QUEUED', 'RETRYING')
   AND state = 'QUEUED' AND errors + losses <= retries
   AND (:kinds IS NULL OR kind || ' ' || kind_version IN (SELECT value FROM json_each(:kinds)))
   AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
   AND NOT EXISTS (SELECT 1 FROM queue WHERE queue.name = job.queue AND paused)
   AND (run_id IS NULL
        OR EXISTS (SELECT 1 FROM run
                    WHERE run.id = job.run_id
                      AND run.state IN ('CREATED', 'QUEUED', 'RUNNING', 'FINALIZING')))
 ORDER BY priority DESC, queued_seq
 LIMIT 1
