-- each: gives back a job whose arguments do not fit the function: it waits for another one, or a
-- person. No row back means that the lease was lost, or that the job was asked to stop.
UPDATE job
   SET state = 'WAITING', move = 'release', version = version + 1, worker_id = NULL, actor = :actor,
       detail = :detail, due_at = NULL, phase = 'unfit', releases = releases + 1,
       unfit = CASE WHEN instr(unfit, :signature) > 0 THEN unfit
                    ELSE substr(ltrim(coalesce(unfit, '') || ' ' || :signature), -500) END
 WHERE id = :id AND fence = :fence AND state = 'RUNNING' AND cancel_reason IS NULL
   AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')
RETURNING id
