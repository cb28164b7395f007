-- Whoever holds one is not waited for: it leaves another time.
DELETE FROM job
 WHERE id IN (SELECT id FROM job
               WHERE id = ANY (:id::uuid[]) AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
               ORDER BY id
                 FOR UPDATE SKIP LOCKED)
RETURNING id::text
