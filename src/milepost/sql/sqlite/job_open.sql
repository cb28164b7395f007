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
           FROM json_each(:run_id) AS t CROSS JOIN step CROSS JOIN job INDEXED BY job_run
          WHERE step.run_id = t.value AND step.opened
            AND job.run_id = step.run_id AND job.step = step.number AND job.state = 'GATED'
          LIMIT :most)
RETURNING id
