-- Takes running jobs from workers that are dead or unknown. The worker who died is the detail. A loss
-- in company accuses nobody: before one would end it, a job is claimed alone (job_claim).
-- (`% 1 = 0` is always true: it makes the planner expect few rows, and look each up by its id.)
WITH lost AS MATERIALIZED (
  SELECT job.id, job.fence, (cancel_reason IS NOT NULL OR coalesce((SELECT run.state = 'STOPPING' FROM run WHERE run.id = job.run_id), false)) AS stopped,
         coalesce(phase = 'REQUESTING' AND policy = 'fail_unknown', false) AS unknown,
         job.losses + 1 >= job.poison_limit
         AND NOT EXISTS (SELECT 1 FROM job other
                          WHERE other.worker_id = job.worker_id AND other.state = 'RUNNING'
                            AND other.id <> job.id) AS poisoned
    FROM job
   WHERE job.state = 'RUNNING'
     AND NOT EXISTS (SELECT 1 FROM worker WHERE worker.id = job.worker_id AND worker.state <> 'STOPPED')
   ORDER BY job.worker_id
   LIMIT :most
     FOR UPDATE OF job SKIP LOCKED
)
UPDATE job
   SET state = CASE WHEN lost.stopped THEN 'CANCELLED'
                    WHEN coalesce(deadline_at <= {now}, false) THEN 'FAILED'
                    WHEN lost.unknown OR lost.poisoned OR errors + losses + 1 > retries THEN 'FAILED'
                    ELSE 'RETRYING' END,
       move = CASE WHEN lost.stopped THEN 'cancel'
                   WHEN coalesce(deadline_at <= {now}, false) THEN 'expire'
                   ELSE 'lose' END,
       cause = CASE WHEN lost.stopped THEN NULL
                    WHEN coalesce(deadline_at <= {now}, false) THEN 'deadline'
                    WHEN lost.unknown THEN 'outcome_unknown'
                    WHEN lost.poisoned THEN 'poisoned'
                    WHEN errors + losses + 1 > retries THEN 'attempts_exhausted' END,
       losses = losses + CASE WHEN lost.stopped OR coalesce(deadline_at <= {now}, false) THEN 0 ELSE 1 END,
       -- Sent, perhaps, and never heard of: another attempt might do it twice (H-91).
       error = CASE WHEN lost.unknown AND NOT lost.stopped
                    THEN '{"type":"OutcomeUnknown","message":"the worker died after the request was about to be sent and before its answer was recorded: ask the remote whether it was done, then rerun the job or leave it","kind":"permanent","code":"outcome_unknown"}'
                    ELSE error END,
       finished_at = CASE WHEN lost.stopped OR lost.unknown OR coalesce(deadline_at <= {now}, false) OR lost.poisoned
                               OR errors + losses + 1 > retries THEN {now} END,
       due_at = {now}, delay_us = NULL, worker_id = NULL, version = version + 1, actor = :actor,
       detail = job.worker_id
  FROM lost
 WHERE job.id = lost.id AND lost.fence % 1 = 0
RETURNING job.id::text, job.run_id::text, job.step, job.state, job.detail
