-- Lets jobs of opened steps through their gate; a polling step's jobs sleep first. The flip of the
-- step's row is the truth, this is its follow-up.
WITH gated AS MATERIALIZED (
  SELECT job.id, step.poll_us
    FROM job JOIN step ON step.run_id = job.run_id AND step.number = job.step
   WHERE job.state = 'GATED' AND job.run_id = :run_id AND step.opened
   ORDER BY job.id
   LIMIT :most
     FOR UPDATE OF job SKIP LOCKED
)
UPDATE job
   SET state = CASE WHEN gated.poll_us IS NULL THEN 'QUEUED' ELSE 'WAITING' END, move = 'open',
       version = version + 1, actor = :actor, detail = NULL,
       due_at = {now} + gated.poll_us{micros}, queued_seq = nextval('queued_seq')
  FROM gated
 WHERE job.id = gated.id
RETURNING job.id::text
