-- What a worker holds and should let go of, and why.
SELECT {text:job.id}, job.fence, coalesce(job.cancel_reason, 'the run is stopping')
  FROM job
 WHERE job.worker_id = :worker_id AND job.state = 'RUNNING'
   AND (job.cancel_reason IS NOT NULL
        OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING'))
 ORDER BY job.id
