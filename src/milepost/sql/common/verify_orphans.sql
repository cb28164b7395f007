-- Jobs of a run that is not there (I15).
SELECT {text:job.id}, {text:job.run_id}
  FROM job
 WHERE job.run_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id)
