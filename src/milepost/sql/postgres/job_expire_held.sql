-- Ends held jobs that nobody submitted in time (H-108); those of a run wait for their run.
-- (`% 1 = 0` is always true: it makes the planner expect few rows, and look each up by its id.)
WITH late AS MATERIALIZED (
  SELECT id, fence FROM job
   WHERE state = 'CREATED' AND run_id IS NULL
     AND created_at <= {now} - :hold_us::bigint{micros}
   ORDER BY created_at
   LIMIT :most
     FOR UPDATE SKIP LOCKED
)
UPDATE job
   SET state = 'FAILED', move = 'expire', cause = 'deadline', version = version + 1, actor = :actor,
       detail = 'hold_limit', finished_at = {now}
  FROM late
 WHERE job.id = late.id AND late.fence % 1 = 0
RETURNING job.id::text
