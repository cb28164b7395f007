-- Records that a step is done. No row back means the lease was lost. Recording again what this
-- attempt recorded already, because the answer was lost, changes nothing.
INSERT INTO durable_step (job_id, name, fence, at, result)
SELECT id, :name, fence, {now}, :result FROM job
 WHERE id = :id AND fence = :fence AND state = 'RUNNING'
ON CONFLICT (job_id, name) DO UPDATE SET result = excluded.result
 WHERE durable_step.fence = excluded.fence
RETURNING fence
