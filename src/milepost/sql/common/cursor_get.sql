-- Where the attempts before this one came to. No row back means the lease was lost.
SELECT coalesce(progress.saves, 0), progress.position, coalesce(progress.fence, 0)
  FROM job LEFT JOIN progress ON progress.job_id = job.id
 WHERE job.id = :id AND job.fence = :fence AND job.state = 'RUNNING'
