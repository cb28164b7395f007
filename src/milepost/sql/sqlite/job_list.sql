-- Newest first; the cursor is the last id seen. A page ends before the first row that stands behind
-- more than :most_bytes of content: it is cut here, so that nobody reads what nobody is told. How many
-- there were before the cut stands in the last column.
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
SELECT id, kind, kind_version, queue, priority, state, version, fence, worker_id, phase, cause, errors, losses, polls, releases, retries, poll_limit, poison_limit, timeout_us, codec, payload, result, error, tags, tenant, unique_key, channel, trace, run_id, step, ordinal, parent_id, rerun_of, origin_id, (SELECT max(newer.id) FROM job AS newer WHERE newer.rerun_of = job.id), cancel_reason, move, policy, (SELECT fraction FROM progress WHERE job_id = job.id), (SELECT message FROM progress WHERE job_id = job.id), due_at, created_at, started_at, finished_at, deadline_at, (SELECT count(*) FROM listed)
  FROM job
 WHERE id IN (SELECT id FROM fitting WHERE :most_bytes IS NULL OR ahead < :most_bytes)
 ORDER BY job.id DESC
