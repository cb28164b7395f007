UPDATE job
   SET state = 'CANCELLED', move = 'cancel', version = version + 1,
       actor = :actor, detail = :reason, cancel_reason = :reason, finished_at = {now}
 WHERE id = :id AND state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED', 'RETRYING')
RETURNING {text:id}, {text:run_id}, step
