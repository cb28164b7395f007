SELECT id, result FROM job INDEXED BY job_run
 WHERE run_id = :run_id AND step = :step AND state = 'SUCCEEDED' AND id > coalesce(:after, '')
 ORDER BY id
 LIMIT :most
