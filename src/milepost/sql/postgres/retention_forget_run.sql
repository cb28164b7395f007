-- Whoever holds one is not waited for: it leaves another time.
-- (`% 1 = 0` is always true: it makes the planner expect few rows, and look each up by its id.)
WITH picked AS MATERIALIZED (
  SELECT id, fence FROM run
   WHERE id = ANY (:id::uuid[]) AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
   ORDER BY id
     FOR UPDATE SKIP LOCKED
)
DELETE FROM run USING picked
 WHERE run.id = picked.id AND picked.fence % 1 = 0
RETURNING run.id::text
