-- The index has run, step and state first, then the id: a page is read in order and no further.
-- (By the state too, though it is one: only that index has both. By `job.id`: a plain `id` would be the text that is answered, and everything would be sorted.)
SELECT id::text, result,
       CASE WHEN result IS NULL
            THEN EXISTS (SELECT 1 FROM job_output o WHERE o.job_id = job.id AND o.fence = job.fence)
            ELSE false END
  FROM job
 WHERE run_id = :run_id AND step = :step AND state BETWEEN 'SUCCEEDED' AND 'SUCCEEDED'
   AND id > coalesce(:after::uuid, '00000000-0000-0000-0000-000000000000')
 ORDER BY job.state, job.id
 LIMIT :most
