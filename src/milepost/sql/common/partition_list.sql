SELECT job.ordinal, {text:job.id}, job.state, job.cause, job.error, coalesce(progress.saves, 0),
       coalesce(progress.records, 0), progress.fraction, reading.low, reading.high,
       reading.closed_at, job.payload, coalesce(progress.duplicates, 0),
       coalesce(progress.completions, 0)
  FROM job JOIN step ON step.run_id = job.run_id AND step.number = job.step
  LEFT JOIN progress ON progress.job_id = job.id
  LEFT JOIN reading ON reading.root_id = :root_id AND reading.ordinal = job.ordinal
 WHERE job.run_id = :run_id AND step.role = 'partition'
   AND (job.state = 'RUNNING' OR job.state <> 'RUNNING')
 ORDER BY job.ordinal
