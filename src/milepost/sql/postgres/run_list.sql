-- Newest first; the cursor is the last id seen.
SELECT id::text, kind, kind_version, queue, priority, state, version, current_step, ending, phase, cause, mode, codec, payload, report, error, tags::text, tenant, unique_key, channel, trace, parent_id::text, rerun_of::text, resumes::text, policy, move, created_at, started_at, finished_at, deadline_at
  FROM run
 WHERE (:state::text IS NULL OR state = :state::text)
   AND (:kind::text IS NULL OR kind = :kind::text)
   AND (:tenant::text IS NULL OR tenant = :tenant::text)
   AND (:states::text IS NULL OR state IN (SELECT jsonb_array_elements_text(:states::text::jsonb)))
   AND (:queues::text IS NULL OR queue IN (SELECT jsonb_array_elements_text(:queues::text::jsonb)))
   AND (:before::uuid IS NULL OR run.id < :before::uuid)
 ORDER BY run.id DESC
 LIMIT :most
