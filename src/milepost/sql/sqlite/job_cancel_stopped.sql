-- Cancels what has not begun in a run that is stopping, a batch at a time.
UPDATE job
   SET state = 'CANCELLED', move = 'cancel', version = version + 1, actor = :actor,
       detail = 'the run is stopping', finished_at = {now}
 WHERE rowid IN (
         SELECT rowid FROM job
          WHERE run_id = :run_id
            AND state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED', 'RETRYING')
          LIMIT :most)
RETURNING id, run_id, step
