-- Ends what missed its deadline, or missed its start, and is not running.
UPDATE job
   SET state = 'FAILED', move = 'expire', cause = 'deadline', version = version + 1, actor = :actor,
       detail = CASE WHEN deadline_at <= {now} THEN 'deadline' ELSE 'start_within' END,
       finished_at = {now}
 WHERE rowid IN (
         SELECT rowid FROM job
          WHERE (deadline_at IS NOT NULL OR start_by IS NOT NULL)
            AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
            AND min(coalesce(deadline_at, start_by), coalesce(start_by, deadline_at)) <= {now}
            AND state <> 'RUNNING'
            AND (deadline_at <= {now} OR (start_by <= {now} AND fence = 0))
          LIMIT :most)
RETURNING id, run_id, step
