-- Ends held jobs that nobody submitted in time (H-108); those of a run wait for their run.
UPDATE job
   SET state = 'FAILED', move = 'expire', cause = 'deadline', version = version + 1, actor = :actor,
       detail = 'hold_limit', finished_at = {now}
 WHERE rowid IN (
         SELECT rowid FROM job
          WHERE state = 'CREATED' AND run_id IS NULL AND created_at <= {now} - :hold_us
          ORDER BY created_at
          LIMIT :most)
RETURNING id
