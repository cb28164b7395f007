-- Takes running jobs from workers that are dead or unknown. The worker who died is the detail.
UPDATE job
   SET state = CASE WHEN (cancel_reason IS NOT NULL OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')) THEN 'CANCELLED'
                    WHEN coalesce(deadline_at <= {now}, false) THEN 'FAILED'
                    WHEN coalesce(phase = 'REQUESTING' AND policy = 'fail_unknown', false) THEN 'FAILED'
                    WHEN losses + 1 >= poison_limit OR errors + losses + 1 > retries THEN 'FAILED'
                    ELSE 'RETRYING' END,
       move = CASE WHEN (cancel_reason IS NOT NULL OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')) THEN 'cancel'
                   WHEN coalesce(deadline_at <= {now}, false) THEN 'expire'
                   ELSE 'lose' END,
       cause = CASE WHEN (cancel_reason IS NOT NULL OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')) THEN NULL
                    WHEN coalesce(deadline_at <= {now}, false) THEN 'deadline'
                    WHEN coalesce(phase = 'REQUESTING' AND policy = 'fail_unknown', false) THEN 'outcome_unknown'
                    WHEN losses + 1 >= poison_limit THEN 'poisoned'
                    WHEN errors + losses + 1 > retries THEN 'attempts_exhausted' END,
       losses = losses + CASE WHEN (cancel_reason IS NOT NULL OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')) OR coalesce(deadline_at <= {now}, false) THEN 0 ELSE 1 END,
       -- Sent, perhaps, and never heard of: another attempt might do it twice (H-91).
       error = CASE WHEN coalesce(phase = 'REQUESTING' AND policy = 'fail_unknown', false)
                    THEN '{"type":"OutcomeUnknown","message":"the worker died after the request was about to be sent and before its answer was recorded: ask the remote whether it was done, then rerun the job or leave it","kind":"permanent","code":"outcome_unknown"}'
                    ELSE error END,
       finished_at = CASE WHEN coalesce(phase = 'REQUESTING' AND policy = 'fail_unknown', false) OR (cancel_reason IS NOT NULL OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')) OR coalesce(deadline_at <= {now}, false) OR losses + 1 >= poison_limit
                               OR errors + losses + 1 > retries THEN {now} END,
       due_at = {now}, worker_id = NULL, version = version + 1, actor = :actor,
       detail = job.worker_id
 WHERE rowid IN (
         SELECT job.rowid FROM job
          WHERE job.state = 'RUNNING'
            AND NOT EXISTS (SELECT 1 FROM worker
                             WHERE worker.id = job.worker_id AND worker.state <> 'STOPPED')
          ORDER BY job.worker_id
          LIMIT :most)
RETURNING id, run_id, step, state, detail
