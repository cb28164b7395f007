-- Submits the jobs of sealed runs.
UPDATE job
   SET state = (SELECT CASE WHEN gated AND NOT opened THEN 'GATED' WHEN poll_us IS NOT NULL
                            THEN 'WAITING' ELSE 'QUEUED' END
                  FROM step WHERE step.run_id = job.run_id AND number = job.step),
       move = 'submit', version = version + 1, actor = :actor, detail = NULL,
       due_at = {now} + (SELECT poll_us FROM step WHERE step.run_id = job.run_id AND number = job.step),
       queued_seq = {now}
 WHERE rowid IN (SELECT job.rowid
                   FROM json_each(:run_id) AS t CROSS JOIN step CROSS JOIN job INDEXED BY job_run
                  WHERE step.run_id = t.value AND job.run_id = step.run_id
                    AND job.step = step.number AND job.state = 'CREATED'
                  LIMIT :most)
RETURNING id
