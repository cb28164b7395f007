-- Submits the jobs of a sealed run.
WITH held AS MATERIALIZED (
  SELECT job.id, step.gated AND NOT step.opened AS gated, step.poll_us
    FROM job JOIN step ON step.run_id = job.run_id AND step.number = job.step
   WHERE job.state = 'CREATED' AND job.run_id = :run_id
   ORDER BY job.id
   LIMIT :most
     FOR UPDATE OF job SKIP LOCKED
)
UPDATE job
   SET state = CASE WHEN held.gated THEN 'GATED' WHEN held.poll_us IS NOT NULL THEN 'WAITING'
                    ELSE 'QUEUED' END,
       move = 'submit', version = version + 1, actor = :actor, detail = NULL,
       due_at = {now} + held.poll_us{micros}, queued_seq = nextval('queued_seq')
  FROM held
 WHERE job.id = held.id
RETURNING job.id::text
