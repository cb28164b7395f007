-- Cancels what has not begun in a run that is stopping, a batch at a time.
-- (`% 1 = 0` is always true: it makes the planner expect few rows, and look each up by its id.)
WITH open AS MATERIALIZED (
  SELECT id, fence FROM job
   WHERE run_id = :run_id
     AND state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED', 'RETRYING')
   LIMIT :most
     FOR UPDATE SKIP LOCKED
)
UPDATE job
   SET state = 'CANCELLED', move = 'cancel', version = version + 1, actor = :actor,
       detail = 'the run is stopping', finished_at = {now}
  FROM open
 WHERE job.id = open.id AND open.fence % 1 = 0
RETURNING job.id::text, job.run_id::text, job.step
