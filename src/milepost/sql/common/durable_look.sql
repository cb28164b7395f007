-- What an attempt that holds its job knows of one step. No row back means the lease was lost.
SELECT durable_step.name, durable_step.result
  FROM job LEFT JOIN durable_step ON durable_step.job_id = job.id AND durable_step.name = :name
 WHERE job.id = :id AND job.fence = :fence AND job.state = 'RUNNING'
