-- each
INSERT INTO quarantine (pipeline_id, key, root_id, version, type, reason, payload, at)
VALUES (:pipeline_id, :key, :root_id, :version, :type, :reason, :payload, {now})
ON CONFLICT (pipeline_id, key, root_id) DO UPDATE
  SET version = excluded.version, type = excluded.type, reason = excluded.reason,
      payload = excluded.payload, at = excluded.at, resolved_at = NULL
