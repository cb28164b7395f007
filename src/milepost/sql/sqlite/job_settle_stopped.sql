-- each: a job that was asked to stop, and whose attempt did not end it, is cancelled instead.
UPDATE job
   SET state = 'CANCELLED', move = 'cancel', version = version + 1, worker_id = NULL, actor = :actor,
       detail = cancel_reason, finished_at = {now}, due_at = NULL, error = coalesce(:error, error)
 WHERE id = :id AND fence = :fence AND state = 'RUNNING'
RETURNING id, run_id, step
