-- The first suspect in line: a job whose loss would end it, because it was lost so often, and which
-- therefore runs with no other in its process. There are few, and mostly none: an index has them, and
-- those whose budget is spent.
WITH few AS MATERIALIZED (
  SELECT state, errors, losses, retries, kind, kind_version, queue, priority, queued_seq, run_id
    FROM job
   WHERE (losses - poison_limit >= -1 OR errors + losses - retries > 0
          OR (losses > 0 AND errors + losses - retries = 0))
     AND state IN ('WAITING', 'READY', 'QUEUED', 'RETRYING')
)
SELECT queue, priority, queued_seq
  FROM few
 WHERE state = 'QUEUED' AND errors + losses <= retries
   AND (:kinds::text[] IS NULL OR kind || ' ' || kind_version = ANY(:kinds::text[]))
   AND (:queues::text[] IS NULL OR queue = ANY(:queues::text[]))
   AND (SELECT paused FROM queue WHERE queue.name = few.queue) IS NOT TRUE
   AND (run_id IS NULL
        OR (SELECT run.state FROM run WHERE run.id = few.run_id)
           IN ('CREATED', 'QUEUED', 'RUNNING', 'FINALIZING'))
 ORDER BY priority DESC, queued_seq
 LIMIT 1
