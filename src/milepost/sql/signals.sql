-- Signals sent to jobs.

-- name: job_signal
-- Wakes a job that waits; one whose arguments do not fit reads its signals once they do.
-- postgres
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'wake', version = version + 1, actor = :actor, detail = 'signal',
       delay_us = NULL, queued_seq = {requeued}
 WHERE id = :id AND state = 'WAITING' AND phase IS DISTINCT FROM 'unfit'
RETURNING version
-- sqlite
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'wake', version = version + 1, actor = :actor, detail = 'signal', queued_seq = {requeued}
 WHERE id = :id AND state = 'WAITING' AND phase IS NOT 'unfit'
RETURNING version

-- name: job_run_now
-- Sends a job on that sleeps, before its time; one whose arguments do not fit is released instead.
-- postgres
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = CASE state WHEN 'WAITING' THEN 'wake' ELSE 'due' END, version = version + 1,
       actor = :actor, detail = 'run now', delay_us = NULL, queued_seq = {requeued}
 WHERE id = :id AND state IN {sleeping} AND phase IS DISTINCT FROM 'unfit'
RETURNING version
-- sqlite
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = CASE state WHEN 'WAITING' THEN 'wake' ELSE 'due' END, version = version + 1,
       actor = :actor, detail = 'run now', queued_seq = {requeued}
 WHERE id = :id AND state IN {sleeping} AND phase IS NOT 'unfit'
RETURNING version

-- name: signal_add
-- The job's row is locked by now: its fence tells which claims come after the signal.
INSERT INTO signal (id, job_id, at, data, fence)
SELECT :id, id, {now}, :data, fence FROM job WHERE id = :job_id
ON CONFLICT (id) DO NOTHING

-- name: signal_count
-- Counts the signals that a job has not used, up to so many.
SELECT count(*) FROM (SELECT 1 FROM signal WHERE job_id = :job_id LIMIT :most) AS kept

-- name: signal_take
-- The attempt that holds the lease takes what has come, and what an attempt that failed or was lost
-- had taken before it. Asked again, it is given all of it again: the answer may have been lost.
UPDATE signal SET taken_by = :fence
 WHERE job_id = :id
   AND EXISTS (SELECT 1 FROM job WHERE id = :id AND fence = :fence AND state = 'RUNNING')
RETURNING {text:id}, data

-- name: signal_use
-- What an attempt took before it went to sleep is used up.
-- postgres
DELETE FROM signal USING unnest(:id::uuid[], :fence::bigint[]) AS i (id, fence)
 WHERE signal.job_id = i.id AND signal.taken_by = i.fence
-- sqlite: each
DELETE FROM signal WHERE job_id = :id AND taken_by = :fence
