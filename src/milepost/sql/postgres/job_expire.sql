-- Ends what missed its deadline, or missed its start, and is not running.
-- (`% 1 = 0` is always true: it makes the planner expect few rows, and look each up by its id.)
WITH late AS MATERIALIZED (
  SELECT id, fence FROM job
   WHERE (deadline_at IS NOT NULL OR start_by IS NOT NULL)
     AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
     AND least(coalesce(deadline_at, start_by), coalesce(start_by, deadline_at)) <= {now}
     AND state <> 'RUNNING'
     AND (deadline_at <= {now} OR (start_by <= {now} AND fence = 0))
   ORDER BY least(coalesce(deadline_at, start_by), coalesce(start_by, deadline_at))
   LIMIT :most
     FOR UPDATE SKIP LOCKED
)
UPDATE job
   SET state = 'FAILED', move = 'expire', cause = 'deadline', version = version + 1, actor = :actor,
       detail = CASE WHEN deadline_at <= {now} THEN 'deadline' ELSE 'start_within' END,
       finished_at = {now}
  FROM late
 WHERE job.id = late.id AND late.fence % 1 = 0
RETURNING job.id::text, job.run_id::text, job.step
