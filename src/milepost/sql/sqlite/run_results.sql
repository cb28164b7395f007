-- What gave several results has none on its row.
SELECT id, result,
       CASE WHEN result IS NULL
            THEN EXISTS (SELECT 1 FROM job_output o WHERE o.job_id = job.id AND o.fence = job.fence)
            ELSE 0 END
  FROM job INDEXED BY job_run
 WHERE run_id = :run_id AND step = :step AND state = 'SUCCEEDED' AND id > coalesce(:after, '')
 ORDER BY id
 LIMIT :most
