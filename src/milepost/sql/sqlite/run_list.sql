-- Newest first; the cursor is the last id seen.
SELECT id, kind, kind_version, queue, priority, state, version, current_step, ending, phase, cause, mode, codec, payload, report, error, tags, tenant, unique_key, channel, trace, parent_id, rerun_of, resumes, policy, move, created_at, started_at, finished_at, deadline_at
  FROM run
 WHERE (:state IS NULL OR state = :state)
   AND (:kind IS NULL OR kind = :kind)
   AND (:tenant IS NULL OR tenant = :tenant)
   AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
   AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
   AND (:before IS NULL OR run.id < :before)
 ORDER BY run.id DESC
 LIMIT :most
