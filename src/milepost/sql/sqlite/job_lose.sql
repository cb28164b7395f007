-- Takes running jobs from workers that are dead or unknown. The worker who died is the detail.
UPDATE job
   SET state = CASE WHEN (cancel_reason IS NOT NULL OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')) THEN 'CANCELLED'
                    WHEN coalesce(deadline_at <= {now}, false) THEN 'FAILED'
                    WHEN losses + 1 >= poison_limit OR errors + losses + 1 > retries THEN 'FAILED'
                    ELSE 'RETRYING' END,
       move = CASE WHEN (cancel_reason IS NOT NULL OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')) THEN 'cancel'
                   WHEN coalesce(deadline_at <= {now}, false) THEN 'expire'
                   ELSE 'lose' END,
       cause = CASE WHEN (cancel_reason IS NOT NULL OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')) THEN NULL
                    WHEN coalesce(deadline_at <= {now}, false) THEN 'deadline'
                    WHEN losses + 1 >= poison_limit THEN 'poisoned'
                    WHEN errors + losses + 1 > retries THEN 'attempts_exhausted' END,
       losses = losses + CASE WHEN (cancel_reason IS NOT NULL OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')) OR coalesce(deadline_at <= {now}, false) THEN 0 ELSE 1 END,
       finished_at = CASE WHEN (cancel_reason IS NOT NULL OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')) OR coalesce(deadline_at <= {now}, false) OR losses + 1 >= poison_limit
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
