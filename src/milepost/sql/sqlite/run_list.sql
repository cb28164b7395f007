-- Newest first; the cursor is the last id seen. A page ends before the first row that stands behind
-- more than :most_bytes of content: it is cut here, so that nobody reads what nobody is told. How many
-- there were before the cut stands in the last column.
WITH listed AS (
SELECT id, coalesce(length(payload), 0) + coalesce(length(report), 0) + coalesce(length(error), 0) AS size
  FROM run
 WHERE (:state IS NULL OR state = :state)
   AND (:kind IS NULL OR kind = :kind)
   AND (:tenant IS NULL OR tenant = :tenant)
   AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
   AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
   AND (:before IS NULL OR run.id < :before)
 ORDER BY run.id DESC
 LIMIT :most
), fitting AS (
SELECT id, sum(size) OVER (ORDER BY id DESC ROWS UNBOUNDED PRECEDING) - size AS ahead FROM listed
)
SELECT id, kind, kind_version, queue, priority, state, version, current_step, ending, phase, cause, mode, codec, payload, report, error, tags, tenant, unique_key, params_key, channel, trace, parent_id, rerun_of, resumes, policy, move, created_at, started_at, finished_at, deadline_at, (SELECT count(*) FROM listed)
  FROM run
 WHERE id IN (SELECT id FROM fitting WHERE :most_bytes IS NULL OR ahead < :most_bytes)
 ORDER BY run.id DESC
