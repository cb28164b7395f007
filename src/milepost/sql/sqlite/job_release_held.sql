-- Submits the jobs of a sealed run.
UPDATE job
   SET state = (SELECT CASE WHEN gated AND NOT opened THEN 'GATED' WHEN poll_us IS NOT NULL
                            THEN 'WAITING' ELSE 'QUEUED' END
                  FROM step WHERE step.run_id = job.run_id AND number = job.step),
       move = 'submit', version = version + 1, actor = :actor, detail = NULL,
       due_at = {now} + (SELECT poll_us FROM step WHERE step.run_id = job.run_id AND number = job.step),
       queued_seq = {now}
 WHERE rowid IN (SELECT job.rowid FROM job WHERE state = 'CREATED' AND run_id = :run_id
                  ORDER BY id LIMIT :most)
RETURNING id
