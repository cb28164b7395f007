UPDATE job
   SET state = 'FAILED', move = 'reject', cause = 'rejected', version = version + 1,
       actor = :actor, detail = :reason, finished_at = {now}
 WHERE id = :id AND state IN ('WAITING', 'READY', 'QUEUED', 'RETRYING')
RETURNING {text:id}, {text:run_id}, step
