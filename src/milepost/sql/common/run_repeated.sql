SELECT coalesce(sum(duplicates), 0), coalesce(sum(completions), 0)
  FROM progress JOIN job ON job.id = progress.job_id
 WHERE job.run_id = :run_id
   AND (job.state = 'RUNNING' OR job.state <> 'RUNNING')
