-- The attempt that holds the lease takes what has come, and what an attempt that failed or was lost
-- had taken before it. Asked again, it is given all of it again: the answer may have been lost.
UPDATE signal SET taken_by = :fence
 WHERE job_id = :id
   AND EXISTS (SELECT 1 FROM job WHERE id = :id AND fence = :fence AND state = 'RUNNING')
RETURNING {text:id}, data
