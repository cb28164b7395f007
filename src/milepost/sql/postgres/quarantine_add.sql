INSERT INTO quarantine (pipeline_id, key, root_id, version, type, reason, payload, at)
SELECT :pipeline_id, i.key, :root_id::uuid, i.version, i.type, i.reason, i.payload, {now}
  FROM unnest(:key::text[], :version::bigint[], :type::text[], :reason::text[], :payload::bytea[])
       AS i (key, version, type, reason, payload)
ON CONFLICT (pipeline_id, key, root_id) DO UPDATE
  SET version = excluded.version, type = excluded.type, reason = excluded.reason,
      payload = excluded.payload, at = excluded.at, resolved_at = NULL
