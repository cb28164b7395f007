-- Running attempts and their outcomes, all under the fence of the claim.

-- name: job_settle
-- Moves leased jobs to their outcomes. No row back means the lease was lost, or, for an outcome
-- that is not an end, that the job was asked to stop.
-- postgres
-- For the planner: CASE hides the state from statistics, which say that no job is RUNNING and would
-- scan for them all.
UPDATE job
   SET state = i.state, move = i.move, version = version + 1, worker_id = NULL, actor = :actor,
       detail = i.detail,
       due_at = {now} + i.delay_us{micros}, delay_us = i.delay_us,
       result = i.result, error = coalesce(i.error, job.error), cause = i.cause,
       error_type = coalesce(i.error_type, job.error_type),
       error_code = coalesce(i.error_code, job.error_code),
       fingerprint = coalesce(i.fingerprint, job.fingerprint),
       finished_at = CASE WHEN i.delay_us IS NULL AND i.state <> 'WAITING' THEN {now} END,
       errors = job.errors + CASE WHEN i.move IN ('retry', 'fail') THEN 1 ELSE 0 END,
       polls = job.polls + CASE WHEN i.move = 'later' THEN 1 ELSE 0 END,
       releases = job.releases + CASE WHEN i.move = 'release' THEN 1 ELSE 0 END
  FROM unnest(:id::uuid[], :fence::bigint[], :move::text[], :state::text[], :delay_us::bigint[],
              :result::bytea[], :error::text[], :cause::text[], :detail::text[],
              :error_type::text[], :error_code::text[], :fingerprint::text[])
       AS i (id, fence, move, state, delay_us, result, error, cause, detail,
             error_type, error_code, fingerprint)
 WHERE job.id = i.id AND job.fence = i.fence AND i.fence % 1 = 0
   AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END
   AND (i.move NOT IN ('retry', 'later', 'release')
        OR (job.cancel_reason IS NULL
            AND (SELECT run.state FROM run WHERE run.id = job.run_id) IS DISTINCT FROM 'STOPPING'))
RETURNING job.id::text
-- sqlite: optimistic
WITH i AS MATERIALIZED {rows:id fence move state delay_us result* error cause detail error_type error_code fingerprint}
SELECT json_group_array(json_array(job.id)), NULL, json_group_array(job.rowid)
  FROM i CROSS JOIN job
 WHERE job.id = i.id AND job.fence = i.fence AND +job.state = 'RUNNING'
   AND ((i.move <> 'retry' AND i.move <> 'later' AND i.move <> 'release')
        OR (cancel_reason IS NULL
            AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')))
-- then
UPDATE job
   SET state = i.state, move = i.move, version = version + 1, worker_id = NULL, actor = :actor,
       detail = i.detail,
       due_at = {now} + i.delay_us,
       result = i.result, error = coalesce(i.error, job.error), cause = i.cause,
       error_type = coalesce(i.error_type, job.error_type),
       error_code = coalesce(i.error_code, job.error_code),
       fingerprint = coalesce(i.fingerprint, job.fingerprint),
       finished_at = CASE WHEN i.delay_us IS NULL AND i.state <> 'WAITING' THEN {now} END,
       errors = errors + (i.move IN ('retry', 'fail')),
       polls = polls + (i.move = 'later'),
       releases = releases + (i.move = 'release')
  FROM (WITH given AS MATERIALIZED {rows:id fence move state delay_us result* error cause detail error_type error_code fingerprint}
        SELECT * FROM given) AS i
 WHERE job.id = i.id AND job.fence = i.fence AND +job.state = 'RUNNING'
   AND ((i.move <> 'retry' AND i.move <> 'later' AND i.move <> 'release')
        OR (cancel_reason IS NULL
            AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')))
   AND (:picked IS NULL OR +job.rowid IN (SELECT value FROM json_each(:picked)))

-- name: job_succeed
-- Moves leased jobs that returned a value, and did nothing else, to their end: most of them do. The
-- ids that were held come back, or a single NULL when all of them were.
-- postgres
-- As in job_settle, CASE and the fence's remainder are for the planner.
WITH held AS (
UPDATE job
   SET state = 'SUCCEEDED', move = 'succeed', version = version + 1, worker_id = NULL,
       actor = :actor, detail = NULL, due_at = NULL, delay_us = NULL, result = i.result,
       cause = NULL, finished_at = {now}
  FROM unnest(:id::uuid[], :fence::bigint[], :result::bytea[]) AS i (id, fence, result)
 WHERE job.id = i.id AND job.fence = i.fence AND i.fence % 1 = 0
   AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END
RETURNING job.id
)
SELECT id::text FROM held WHERE (SELECT count(*) FROM held) < cardinality(:id::uuid[])
UNION ALL
SELECT NULL WHERE (SELECT count(*) FROM held) = cardinality(:id::uuid[])
-- sqlite: optimistic
WITH i AS MATERIALIZED {rows:id fence result*}
SELECT json_group_array(json_array(job.id)), NULL, json_group_array(job.rowid)
  FROM i CROSS JOIN job
 WHERE job.id = i.id AND job.fence = i.fence AND +job.state = 'RUNNING'
-- then
UPDATE job
   SET state = 'SUCCEEDED', move = 'succeed', version = version + 1, worker_id = NULL,
       actor = :actor, detail = NULL, due_at = NULL, result = i.result, cause = NULL,
       finished_at = {now}
  FROM (WITH given AS MATERIALIZED {rows:id fence result*}
        SELECT * FROM given) AS i
 WHERE job.id = i.id AND job.fence = i.fence AND +job.state = 'RUNNING'
   AND (:picked IS NULL OR +job.rowid IN (SELECT value FROM json_each(:picked)))

-- name: job_settle_signalled
-- A signal that came during the attempt, which did not take it, wakes the job that it puts to
-- sleep; an older one could have been read, and would wake it again after every attempt.
-- postgres
-- The job's row is held by now: a signal is either seen here, or will see a job that waits.
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'wake', version = version + 1, actor = :actor, detail = 'signal',
       delay_us = NULL, queued_seq = {requeued}
 WHERE id = ANY(:id::uuid[]) AND state = 'WAITING'
   AND EXISTS (SELECT 1 FROM signal WHERE signal.job_id = job.id AND signal.fence = job.fence)
RETURNING job.id::text
-- sqlite
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'wake', version = version + 1, actor = :actor, detail = 'signal', queued_seq = {requeued}
 WHERE id IN (SELECT value FROM json_each(:id)) AND state = 'WAITING'
   AND EXISTS (SELECT 1 FROM signal WHERE signal.job_id = job.id AND signal.fence = job.fence)
RETURNING id

-- name: job_settle_stopped
-- A job that was asked to stop, and whose attempt did not end it, is cancelled instead.
-- postgres
UPDATE job
   SET state = 'CANCELLED', move = 'cancel', version = version + 1, worker_id = NULL, actor = :actor,
       detail = cancel_reason, finished_at = {now}, due_at = NULL, error = coalesce(i.error, job.error)
  FROM unnest(:id::uuid[], :fence::bigint[], :error::text[]) AS i (id, fence, error)
 WHERE job.id = i.id AND job.fence = i.fence AND i.fence % 1 = 0
   AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END
RETURNING job.id::text, job.run_id::text, job.step
-- sqlite: each
UPDATE job
   SET state = 'CANCELLED', move = 'cancel', version = version + 1, queued_seq = queued_seq, worker_id = NULL, actor = :actor,
       detail = cancel_reason, finished_at = {now}, due_at = NULL, error = coalesce(:error, error)
 WHERE id = :id AND fence = :fence AND state = 'RUNNING'
RETURNING id, run_id, step

-- name: failure_add
-- postgres
INSERT INTO failure (job_id, fence, at, error, fingerprint)
SELECT i.id, i.fence, {now}, i.error, i.fingerprint
  FROM unnest(:id::uuid[], :fence::bigint[], :error::text[], :fingerprint::text[])
       AS i (id, fence, error, fingerprint)
-- sqlite: each
INSERT INTO failure (job_id, fence, at, error, fingerprint)
VALUES (:id, :fence, {now}, :error, :fingerprint)

-- name: usage_add
-- postgres
INSERT INTO usage (job_id, fence, name, amount)
SELECT i.id, i.fence, i.name, i.amount
  FROM unnest(:id::uuid[], :fence::bigint[], :name::text[], :amount::double precision[])
       AS i (id, fence, name, amount)
-- sqlite: each
INSERT INTO usage (job_id, fence, name, amount) VALUES (:id, :fence, :name, :amount)

-- name: job_hold
-- Holds a job for the rest of the transaction. No row back means the lease was lost.
-- postgres
-- The commit follows at once: the server does not wait long for it, since recovery needs
-- the row.
SELECT fence,
       set_config('idle_in_transaction_session_timeout',
                  coalesce(nullif(current_setting('milepost.idle', true), ''), '10s'), true)
  FROM job WHERE id = :id AND fence = :fence AND state = 'RUNNING' FOR NO KEY UPDATE
-- sqlite
SELECT fence FROM job WHERE id = :id AND fence = :fence AND state = 'RUNNING'

-- name: job_held
SELECT {text:id}, fence FROM job WHERE worker_id = :worker_id AND state = 'RUNNING' ORDER BY id

-- name: job_note
-- Records a phase of a running attempt. No row back means the lease was lost.
UPDATE job
   SET move = 'note', version = version + 1, phase = :phase, detail = :detail, actor = :actor
 WHERE id = :id AND fence = :fence AND state = 'RUNNING'
RETURNING version

-- name: job_note_many
-- Records a phase of many running attempts. No row back means that the lease was lost.
-- postgres
-- What is said of the state and of the fence is for the planner, as in job_settle.
UPDATE job
   SET move = 'note', version = version + 1, phase = i.phase, detail = i.detail,
       actor = coalesce(:actor::text, job.worker_id)
  FROM unnest(:id::uuid[], :fence::bigint[], :phase::text[], :detail::text[])
       AS i (id, fence, phase, detail)
 WHERE job.id = i.id AND job.fence = i.fence AND i.fence % 1 = 0
   AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END
RETURNING job.id::text
-- sqlite
WITH i AS MATERIALIZED {rows:id fence phase detail}
SELECT json_group_array(json_array(job.id)), NULL, json_group_array(job.rowid)
  FROM i CROSS JOIN job
 WHERE job.id = i.id AND job.fence = i.fence AND +job.state = 'RUNNING'
-- then
WITH i AS MATERIALIZED {rows:id fence phase detail}
UPDATE job
   SET move = 'note', version = version + 1, phase = i.phase, detail = i.detail,
       actor = coalesce(:actor, job.worker_id)
  FROM i
 WHERE job.id = i.id AND +job.rowid IN (SELECT value FROM json_each(:picked))

-- name: job_asked_to_stop
-- What a worker holds and should let go of, and why.
SELECT {text:job.id}, job.fence, coalesce(job.cancel_reason, 'the run is stopping')
  FROM job
 WHERE job.worker_id = :worker_id AND job.state = 'RUNNING'
   AND (job.cancel_reason IS NOT NULL
        OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING'))
 ORDER BY job.id
