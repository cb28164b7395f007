-- Records that a step is done. No row back means the lease was lost. The job's row is held, so that
-- nobody can take the job between the look at it and the commit. Recording again what this attempt
-- recorded already, because the answer was lost, changes nothing. The commit follows at once: the
-- server does not wait long for it, since whoever recovers needs the row.
WITH held AS MATERIALIZED (
  SELECT id, fence,
         set_config('idle_in_transaction_session_timeout',
                    coalesce(nullif(current_setting('milepost.idle', true), ''), '10s'), true)
    FROM job WHERE id = :id AND fence = :fence AND state = 'RUNNING'
     FOR NO KEY UPDATE
)
INSERT INTO durable_step (job_id, name, fence, at, result)
SELECT id, :name::text, fence, {now}, :result::bytea FROM held
ON CONFLICT (job_id, name) DO UPDATE SET result = excluded.result
 WHERE durable_step.fence = excluded.fence
RETURNING fence
