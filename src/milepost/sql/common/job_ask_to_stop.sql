-- A running job is asked; its worker, or the end of its lease, decides.
UPDATE job
   SET move = 'note', version = version + 1, actor = :actor, detail = :reason,
       cancel_reason = :reason
 WHERE id = :id AND state = 'RUNNING' AND cancel_reason IS NULL
RETURNING version
