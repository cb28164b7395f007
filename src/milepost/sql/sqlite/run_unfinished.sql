-- A page of the jobs that did not succeed and are not in the run yet that resumes this one.
SELECT job.id
  FROM job JOIN step ON step.run_id = job.run_id AND step.number = job.step
 WHERE job.run_id = :run_id AND job.state IN ('FAILED', 'CANCELLED')
   AND step.role NOT IN ('reduce', 'on_success', 'on_failure')
   AND job.id > coalesce(:after, '')
   AND (SELECT count(*) FROM job AS again
         WHERE again.rerun_of = job.id AND again.run_id = :new_id) = 0
 ORDER BY job.id
 LIMIT :most
