-- No job stays claimable with a spent budget (H-21). The planner believes that a third of all have spent
-- theirs: with a limit in the first part it would walk the table to find the next few at once, and
-- mostly there are none. (`% 1 = 0` is always true: it makes it look each up by its id.)
WITH spent AS MATERIALIZED (
  SELECT id, errors + losses - retries AS over FROM job
   WHERE (losses - poison_limit >= -1 OR errors + losses - retries > 0
          OR (losses > 0 AND errors + losses - retries = 0))
     AND state IN ('WAITING', 'READY', 'QUEUED', 'RETRYING')
), picked AS MATERIALIZED (
  SELECT id, fence FROM job
   WHERE id = ANY (ARRAY(SELECT id FROM spent WHERE over > 0 LIMIT :most))
     AND errors + losses > retries AND state IN ('WAITING', 'READY', 'QUEUED', 'RETRYING')
     FOR UPDATE SKIP LOCKED
)
UPDATE job
   SET state = 'FAILED', move = 'reject', cause = 'attempts_exhausted', version = version + 1,
       actor = :actor, detail = 'budget spent', finished_at = {now}
  FROM picked
 WHERE job.id = picked.id AND picked.fence % 1 = 0
RETURNING job.id::text, job.run_id::text, job.step
