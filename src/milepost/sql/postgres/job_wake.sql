-- Sends on what sleeps and whose time has come; broker queues wait to be dispatched. A delay counts
-- from the entry in the journal: `due_at` was set before that was stamped, and long before where the
-- statement waited for the row. What is to be retried and says not when (a move by hand) goes on at
-- once; asked for apart, so that nobody walks over all that sleeps.
-- (`% 1 = 0` is always true: it makes the planner expect few rows, and look each up by its id.)
WITH ripe AS MATERIALIZED (
  SELECT id, fence FROM job
   WHERE state IN ('WAITING', 'RETRYING') AND due_at <= {now}
     AND (delay_us IS NULL
          OR coalesce((SELECT at FROM journal
                        WHERE subject_id = job.id AND machine = 'job' AND seq = job.version)
                      + delay_us{micros} <= {now}, true))
   ORDER BY due_at
   LIMIT :most
     FOR UPDATE SKIP LOCKED
), dateless AS MATERIALIZED (
  SELECT id, fence FROM job
   WHERE state IN ('WAITING', 'RETRYING') AND due_at IS NULL AND state = 'RETRYING'
   LIMIT :most
     FOR UPDATE SKIP LOCKED
), going AS MATERIALIZED (
  SELECT id, fence FROM ripe UNION ALL SELECT id, fence FROM dateless LIMIT :most
)
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = CASE state WHEN 'WAITING' THEN 'wake' ELSE 'due' END,
       version = version + 1, actor = :actor, detail = NULL, delay_us = NULL,
       queued_seq = nextval('queued_seq')
  FROM going
 WHERE job.id = going.id AND going.fence % 1 = 0
RETURNING job.id::text
