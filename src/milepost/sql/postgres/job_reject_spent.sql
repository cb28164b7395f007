-- No job stays claimable with a spent budget (H-21).
-- (`% 1 = 0` is always true: it makes the planner expect few rows, and look each up by its id.)
WITH spent AS MATERIALIZED (
  SELECT id, fence FROM job
   WHERE errors + losses > retries AND state IN ('WAITING', 'READY', 'QUEUED', 'RETRYING')
   LIMIT :most
     FOR UPDATE SKIP LOCKED
)
UPDATE job
   SET state = 'FAILED', move = 'reject', cause = 'attempts_exhausted', version = version + 1,
       actor = :actor, detail = 'budget spent', finished_at = {now}
  FROM spent
 WHERE job.id = spent.id AND spent.fence % 1 = 0
RETURNING job.id::text, job.run_id::text, job.step
