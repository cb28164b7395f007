-- Records a phase of many running attempts. No row back means that the lease was lost. What is said
-- of the state and of the fence is for the planner, as in job_settle.
UPDATE job
   SET move = 'note', version = version + 1, phase = i.phase, detail = i.detail,
       actor = coalesce(:actor::text, job.worker_id)
  FROM unnest(:id::uuid[], :fence::bigint[], :phase::text[], :detail::text[])
       AS i (id, fence, phase, detail)
 WHERE job.id = i.id AND job.fence = i.fence AND i.fence % 1 = 0
   AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END
RETURNING job.id::text
