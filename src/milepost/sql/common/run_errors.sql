SELECT {text:job.id}, step.name, job.cause, job.error
  FROM job JOIN step ON step.run_id = job.run_id AND step.number = job.step
 WHERE job.run_id = :id AND job.state = 'FAILED'
 ORDER BY job.id
 LIMIT :most
