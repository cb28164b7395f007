-- Jobs as they are looked at, cancelled and erased.

-- name: job_get
SELECT {columns:job}
  FROM job
 WHERE id = :id

-- name: job_lifecycle
SELECT told."state", told."createdAt", told."startedAt", told."completedAt", told."retryCount",
       told."maxRetries", told."errorType", jobs.cause
  FROM job_lifecycle AS told
  JOIN jobs ON jobs.id = told."jobId"
 WHERE told."jobId" = :id

-- name: job_get_many
-- postgres
SELECT {columns:job}
  FROM job
 WHERE id = ANY(:id::uuid[])
-- sqlite
SELECT {columns:job}
  FROM job
 WHERE id IN (SELECT value FROM json_each(:id))

-- name: job_list
-- Newest first; the cursor is the last id seen. A page ends before the first row that stands behind
-- more than :most_bytes of content: it is cut here, so that nobody reads what nobody is told. How many
-- there were before the cut stands in the last column.
-- postgres
WITH listed AS (
SELECT id, coalesce(octet_length(payload), 0) + coalesce(octet_length(result), 0) + coalesce(octet_length(error), 0) AS size
  FROM job
 WHERE (:state::text IS NULL OR state = :state::text)
   AND (:kind::text IS NULL OR kind = :kind::text)
   AND (:queue::text IS NULL OR queue = :queue::text)
   AND (:tenant::text IS NULL OR tenant = :tenant::text)
   AND (:run_id::uuid IS NULL
        OR run_id = :run_id::uuid AND (state = 'RUNNING' OR state <> 'RUNNING'))
   AND (:states::text IS NULL OR state IN (SELECT jsonb_array_elements_text(:states::text::jsonb)))
   AND (:queues::text IS NULL OR queue IN (SELECT jsonb_array_elements_text(:queues::text::jsonb)))
   AND (:superseded::boolean IS NULL
        OR ((SELECT max(newer.id::text) FROM job AS newer WHERE newer.rerun_of = job.id) IS NOT NULL)
           = :superseded::boolean)
   AND (:before::uuid IS NULL OR job.id < :before::uuid)
 ORDER BY job.id DESC
 LIMIT :most
), fitting AS (
SELECT id, sum(size) OVER (ORDER BY id DESC ROWS UNBOUNDED PRECEDING) - size AS ahead FROM listed
)
SELECT {columns:job}, (SELECT count(*) FROM listed)
  FROM job
 WHERE id = ANY(ARRAY(SELECT id FROM fitting WHERE :most_bytes::bigint IS NULL OR ahead < :most_bytes::bigint))
 ORDER BY job.id DESC
-- sqlite
WITH listed AS (
SELECT id, coalesce(length(payload), 0) + coalesce(length(result), 0) + coalesce(length(error), 0) AS size
  FROM job
 WHERE (:state IS NULL OR state = :state)
   AND (:kind IS NULL OR kind = :kind)
   AND (:queue IS NULL OR queue = :queue)
   AND (:tenant IS NULL OR tenant = :tenant)
   AND (:run_id IS NULL OR run_id = :run_id)
   AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
   AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
   AND (:superseded IS NULL
        OR ((SELECT max(newer.id) FROM job AS newer WHERE newer.rerun_of = job.id) IS NOT NULL)
           = :superseded)
   AND (:before IS NULL OR job.id < :before)
 ORDER BY job.id DESC
 LIMIT :most
), fitting AS (
SELECT id, sum(size) OVER (ORDER BY id DESC ROWS UNBOUNDED PRECEDING) - size AS ahead FROM listed
)
SELECT {columns:job}, (SELECT count(*) FROM listed)
  FROM job
 WHERE id IN (SELECT id FROM fitting WHERE :most_bytes IS NULL OR ahead < :most_bytes)
 ORDER BY job.id DESC

-- name: job_within
-- postgres
SELECT id::text FROM job WHERE id BETWEEN :low::uuid AND :high::uuid ORDER BY job.id LIMIT :most
-- sqlite
SELECT id FROM job WHERE id BETWEEN :low AND :high ORDER BY id LIMIT :most

-- name: job_open_count
-- Whether anything that a worker or the clock could still move is left.
SELECT count(*) FROM (
  SELECT 1 FROM job
   WHERE state IN {submitted}
   LIMIT 1) AS anything

-- name: failure_last
-- postgres
SELECT f.job_id::text, f.error
  FROM unnest(:id::uuid[]) AS asked (id)
 CROSS JOIN LATERAL (SELECT job_id, error FROM failure WHERE job_id = asked.id
                      ORDER BY fence DESC LIMIT 1) AS f
-- sqlite
SELECT f.job_id, f.error
  FROM json_each(:id) AS asked CROSS JOIN failure AS f
 WHERE f.job_id = asked.value
   AND f.fence = (SELECT max(fence) FROM failure WHERE job_id = asked.value)

-- name: failure_list
-- The last ones first: a job may be tried again for weeks.
SELECT fence, at, error, fingerprint FROM failure WHERE job_id = :id ORDER BY fence DESC LIMIT :most

-- name: usage_sum
-- What all attempts of a job used, each name once.
SELECT name, sum(amount) FROM usage WHERE job_id = :id GROUP BY name ORDER BY name

-- name: job_lock
-- postgres
SELECT state, cancel_reason, run_id::text, step FROM job WHERE id = :id FOR UPDATE
-- sqlite
SELECT state, cancel_reason, run_id, step FROM job WHERE id = :id

-- name: job_cancel
UPDATE job
   SET state = 'CANCELLED', move = 'cancel', version = version + 1,
       actor = :actor, detail = :reason, cancel_reason = :reason, finished_at = {now}
 WHERE id = :id AND state IN {unclaimed}
RETURNING {text:id}, {text:run_id}, step

-- name: job_ask_to_stop
-- A running job is asked; its worker, or the end of its lease, decides.
UPDATE job
   SET move = 'note', version = version + 1, actor = :actor, detail = :reason,
       cancel_reason = :reason
 WHERE id = :id AND state = 'RUNNING' AND cancel_reason IS NULL
RETURNING version

-- name: job_erase
UPDATE job
   SET move = 'erase', version = version + 1, actor = :actor, detail = NULL,
       payload = NULL, result = NULL, error = NULL
 WHERE id = :id AND state IN {final}
RETURNING version

-- name: failure_erase
DELETE FROM failure WHERE job_id = :id

-- name: durable_erase
DELETE FROM durable_step WHERE job_id = :id

-- name: progress_erase
-- What a handler said and where it stood are the user's; how much was done is not.
UPDATE progress SET message = NULL, position = NULL WHERE job_id = :id

-- name: log_erase
DELETE FROM job_log WHERE job_id = :id

-- name: output_erase
DELETE FROM job_output WHERE job_id = :id

-- name: signal_erase
DELETE FROM signal WHERE job_id = :id

-- name: job_slowest
-- The jobs that have run for longest, with the microseconds since they were claimed.
-- postgres
SELECT job.id::text, job.kind, job.worker_id,
       (extract(epoch FROM {now} - journal.at) * 1000000)::bigint
  FROM job JOIN journal ON journal.subject_id = job.id AND journal.machine = 'job'
   AND journal.move = 'claim' AND journal.fence = job.fence
 WHERE job.state = 'RUNNING'
 ORDER BY journal.at, job.id
 LIMIT :most
-- sqlite
SELECT job.id, job.kind, job.worker_id, {now} - journal.at
  FROM job JOIN journal ON journal.subject_id = job.id AND journal.machine = 'job'
   AND journal.move = 'claim' AND journal.fence = job.fence
 WHERE job.state = 'RUNNING'
 ORDER BY journal.at, job.id
 LIMIT :most
