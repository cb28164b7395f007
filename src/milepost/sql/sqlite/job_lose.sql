-- Takes running jobs from workers that are dead or unknown. The worker who died is the detail. A loss
-- in company accuses nobody: before one would end it, a job is claimed alone (job_claim).
UPDATE job
   SET state = CASE WHEN lost.stopped THEN 'CANCELLED'
                    WHEN lost.late OR lost.unknown OR lost.poisoned OR lost.spent THEN 'FAILED'
                    ELSE 'RETRYING' END,
       move = CASE WHEN lost.stopped THEN 'cancel' WHEN lost.late THEN 'expire' ELSE 'lose' END,
       cause = CASE WHEN lost.stopped THEN NULL
                    WHEN lost.late THEN 'deadline'
                    WHEN lost.unknown THEN 'outcome_unknown'
                    WHEN lost.poisoned THEN 'poisoned'
                    WHEN lost.spent THEN 'attempts_exhausted' END,
       losses = losses + CASE WHEN lost.stopped OR lost.late THEN 0 ELSE 1 END,
       -- Sent, perhaps, and never heard of: another attempt might do it twice (H-91).
       error = CASE WHEN lost.unknown AND NOT lost.stopped
                    THEN '{"type":"OutcomeUnknown","message":"the worker died after the request was about to be sent and before its answer was recorded: ask the remote whether it was done, then rerun the job or leave it","kind":"permanent","code":"outcome_unknown"}'
                    ELSE error END,
       finished_at = CASE WHEN lost.stopped OR lost.late OR lost.unknown OR lost.poisoned OR lost.spent
                          THEN {now} END,
       due_at = {now}, worker_id = NULL, version = version + 1, actor = :actor,
       detail = job.worker_id
  FROM (SELECT job.rowid AS number,
               cancel_reason IS NOT NULL
               OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')
               AS stopped,
               coalesce(deadline_at <= {now}, false) AS late,
               coalesce(phase = 'REQUESTING' AND policy = 'fail_unknown', false) AS unknown,
               losses + 1 >= poison_limit
               AND NOT EXISTS (SELECT 1 FROM job AS other
                                WHERE other.worker_id = job.worker_id AND other.state = 'RUNNING'
                                  AND other.id <> job.id) AS poisoned,
               errors + losses + 1 > retries AS spent
          FROM job
         WHERE job.state = 'RUNNING'
           AND NOT EXISTS (SELECT 1 FROM worker
                            WHERE worker.id = job.worker_id AND worker.state <> 'STOPPED')
         ORDER BY job.worker_id
         LIMIT :most) AS lost
 WHERE job.rowid = lost.number
RETURNING id, run_id, step, state, detail
