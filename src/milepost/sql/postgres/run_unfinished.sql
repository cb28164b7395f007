-- A page of the jobs that did not succeed, to be created again in a run that resumes this one.
SELECT job.id::text, job.kind, job.kind_version, job.queue, job.priority, job.retries, job.poll_limit,
       job.poison_limit, job.timeout_us, job.policy,
       step.deadline_us, step.start_within_us, job.codec, job.tenant, job.trace, job.parent_id::text,
       job.step, job.ordinal, job.payload
  FROM job JOIN step ON step.run_id = job.run_id AND step.number = job.step
 WHERE job.run_id = :run_id AND job.state IN ('FAILED', 'CANCELLED') AND step.role <> 'reduce'
   AND job.id > coalesce(:after::uuid, '00000000-0000-0000-0000-000000000000')
 ORDER BY job.id
 LIMIT :most
