-- Lets jobs of opened steps through their gate; a polling step's jobs sleep first. The flip of the
-- step's row is the truth, this is its follow-up.
UPDATE job
   SET state = CASE WHEN (SELECT poll_us FROM step WHERE step.run_id = job.run_id AND number = job.step)
                         IS NULL THEN 'QUEUED' ELSE 'WAITING' END,
       move = 'open', version = version + 1, actor = :actor, detail = NULL,
       due_at = {now} + (SELECT poll_us FROM step WHERE step.run_id = job.run_id AND number = job.step),
       queued_seq = {now}
 WHERE rowid IN (
         SELECT job.rowid
           FROM job JOIN step ON step.run_id = job.run_id AND step.number = job.step
          WHERE job.state = 'GATED' AND job.run_id = :run_id AND step.opened
          ORDER BY job.id
          LIMIT :most)
RETURNING id
