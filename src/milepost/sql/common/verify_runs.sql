-- Final runs that still have open jobs.
SELECT DISTINCT {text:run.id}, run.state
  FROM run JOIN job ON job.run_id = run.id
 WHERE run.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
   AND job.state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
