-- A job that was asked to stop, and whose attempt did not end it, is cancelled instead.
UPDATE job
   SET state = 'CANCELLED', move = 'cancel', version = version + 1, worker_id = NULL, actor = :actor,
       detail = cancel_reason, finished_at = {now}, due_at = NULL, error = coalesce(i.error, job.error)
  FROM unnest(:id::uuid[], :fence::bigint[], :error::text[]) AS i (id, fence, error)
 WHERE job.id = i.id AND job.fence = i.fence AND i.fence % 1 = 0
   AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END
RETURNING job.id::text, job.run_id::text, job.step
