-- Whoever holds one is not waited for: it leaves another time. Whoever runs one again meanwhile waits,
-- and then finds nothing.
SELECT id::text, rerun_of::text FROM job
 WHERE id = ANY (:id::uuid[]) AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
 ORDER BY id
   FOR UPDATE SKIP LOCKED
