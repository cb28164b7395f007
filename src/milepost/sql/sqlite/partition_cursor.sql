SELECT coalesce(progress.saves, 0), progress.position, coalesce(progress.done, 0)
  FROM job LEFT JOIN progress ON progress.job_id = job.id
 WHERE job.id = :id AND job.fence = :fence AND job.state = 'RUNNING'
