-- Newest first; the cursor is the last id seen. A page ends before the first row that stands behind
-- more than :most_bytes of content: it is cut here, so that nobody reads what nobody is told. How many
-- there were before the cut stands in the last column.
WITH listed AS (
SELECT id, coalesce(octet_length(payload), 0) + coalesce(octet_length(report), 0) + coalesce(octet_length(error), 0) AS size
  FROM run
 WHERE (:state::text IS NULL OR state = :state::text)
   AND (:kind::text IS NULL OR kind = :kind::text)
   AND (:tenant::text IS NULL OR tenant = :tenant::text)
   AND (:states::text IS NULL OR state IN (SELECT jsonb_array_elements_text(:states::text::jsonb)))
   AND (:queues::text IS NULL OR queue IN (SELECT jsonb_array_elements_text(:queues::text::jsonb)))
   AND (:before::uuid IS NULL OR run.id < :before::uuid)
 ORDER BY run.id DESC
 LIMIT :most
), fitting AS (
SELECT id, sum(size) OVER (ORDER BY id DESC ROWS UNBOUNDED PRECEDING) - size AS ahead FROM listed
)
SELECT id::text, kind, kind_version, queue, priority, state, version, current_step, ending, phase, cause, mode, codec, payload, report, error, tags::text, tenant, unique_key, params_key, channel, trace, parent_id::text, rerun_of::text, resumes::text, policy, move, created_at, started_at, finished_at, deadline_at, (SELECT count(*) FROM listed)
  FROM run
 WHERE id = ANY(ARRAY(SELECT id FROM fitting WHERE :most_bytes::bigint IS NULL OR ahead < :most_bytes::bigint))
 ORDER BY run.id DESC
