-- No job stays claimable with a spent budget (H-21).
WITH spent AS MATERIALIZED (
  SELECT id FROM job
   WHERE errors + losses > retries AND state IN ('WAITING', 'READY', 'QUEUED', 'RETRYING')
   LIMIT :most
     FOR UPDATE SKIP LOCKED
)
UPDATE job
   SET state = 'FAILED', move = 'reject', cause = 'attempts_exhausted', version = version + 1,
       actor = :actor, detail = 'budget spent', finished_at = {now}
  FROM spent
 WHERE job.id = spent.id
RETURNING job.id::text, job.run_id::text, job.step
