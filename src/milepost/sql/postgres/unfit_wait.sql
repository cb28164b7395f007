-- Gives back jobs whose arguments do not fit the function: they wait for another one, or a person.
-- No row back means that the lease was lost, or that the job was asked to stop.
UPDATE job
   SET state = 'WAITING', move = 'release', version = version + 1, worker_id = NULL, actor = :actor,
       detail = i.detail, due_at = NULL, phase = 'unfit', releases = releases + 1,
       unfit = CASE WHEN strpos(job.unfit, i.signature) > 0 THEN job.unfit
                    ELSE right(concat_ws(' ', job.unfit, i.signature), 500) END
  FROM unnest(:id::uuid[], :fence::bigint[], :signature::text[], :detail::text[])
       AS i (id, fence, signature, detail)
 WHERE job.id = i.id AND job.fence = i.fence AND i.fence % 1 = 0
   AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END
   AND job.cancel_reason IS NULL
   AND (SELECT run.state FROM run WHERE run.id = job.run_id) IS DISTINCT FROM 'STOPPING'
RETURNING job.id::text
