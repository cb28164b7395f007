-- Newest first; the cursor is the last id seen. A page ends before the first row that stands behind
-- more than :most_bytes of content: it is cut here, so that nobody reads what nobody is told. How many
-- there were before the cut stands in the last column.
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
SELECT id::text, kind, kind_version, queue, priority, state, version, fence, worker_id, phase, cause, errors, losses, polls, releases, retries, poll_limit, poison_limit, timeout_us, codec, payload, result, error, tags::text, tenant, unique_key, channel, trace, run_id::text, step, ordinal, parent_id::text, rerun_of::text, origin_id::text, (SELECT max(newer.id::text) FROM job AS newer WHERE newer.rerun_of = job.id), cancel_reason, move, policy, (SELECT fraction FROM progress WHERE job_id = job.id), (SELECT message FROM progress WHERE job_id = job.id), due_at, created_at, started_at, finished_at, deadline_at, (SELECT count(*) FROM listed)
  FROM job
 WHERE id = ANY(ARRAY(SELECT id FROM fitting WHERE :most_bytes::bigint IS NULL OR ahead < :most_bytes::bigint))
 ORDER BY job.id DESC
