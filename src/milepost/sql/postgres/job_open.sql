-- Lets jobs of opened steps through their gate; a polling step's jobs sleep first. The flip of the
-- step's row is the truth, this is its follow-up.
-- (`% 1 = 0` is always true: it makes the planner expect few rows, and look each up by its id.
-- BETWEEN one state and the same lets it walk the run's index in order and stop at the limit; OFFSET
-- 0 keeps it from reading all steps into a hash.)
WITH gated AS MATERIALIZED (
  SELECT found.id, found.fence, step.poll_us
    FROM unnest(:run_id::uuid[]) AS t (run_id)
   CROSS JOIN LATERAL (
         SELECT * FROM step WHERE step.run_id = t.run_id AND step.opened OFFSET 0) step
   CROSS JOIN LATERAL (
         SELECT id, fence FROM job
          WHERE job.run_id = step.run_id AND job.step = step.number
            AND job.state BETWEEN 'GATED' AND 'GATED'
          ORDER BY job.state
          LIMIT (SELECT :most::bigint)
            FOR UPDATE SKIP LOCKED) found
   LIMIT :most
), ordered AS MATERIALIZED (
  SELECT * FROM gated ORDER BY id
)
UPDATE job
   SET state = CASE WHEN ordered.poll_us IS NULL THEN 'QUEUED' ELSE 'WAITING' END, move = 'open',
       version = version + 1, actor = :actor, detail = NULL,
       due_at = {now} + ordered.poll_us{micros}, delay_us = ordered.poll_us,
       queued_seq = nextval('queued_seq')
  FROM ordered
 WHERE job.id = ordered.id AND ordered.fence % 1 = 0
RETURNING job.id::text
