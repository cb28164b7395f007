-- Whoever holds one is not waited for: it leaves another time. So does one that was run again.
-- (`% 1 = 0` is always true: it makes the planner expect few rows, and look each up by its id.)
WITH picked AS MATERIALIZED (
  SELECT id, fence FROM job
   WHERE id = ANY (:id::uuid[]) AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
     AND (SELECT count(*) FROM job AS newer
           WHERE newer.rerun_of = job.id AND newer.origin_id IS NOT NULL AND newer.run_id IS NULL) = 0
   ORDER BY id
     FOR UPDATE SKIP LOCKED
)
DELETE FROM job USING picked
 WHERE job.id = picked.id AND picked.fence % 1 = 0
RETURNING job.id::text
