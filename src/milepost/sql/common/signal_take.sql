-- The attempt that holds the lease takes what came since the last one did.
UPDATE signal SET taken_by = :fence
 WHERE job_id = :id AND taken_by IS NULL
   AND EXISTS (SELECT 1 FROM job WHERE id = :id AND fence = :fence AND state = 'RUNNING')
RETURNING {text:id}, data
