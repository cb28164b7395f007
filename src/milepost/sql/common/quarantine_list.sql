SELECT key, {text:root_id}, version, type, reason, payload, at
  FROM quarantine
 WHERE pipeline_id = :pipeline_id AND resolved_at IS NULL AND key > :after
 ORDER BY key
 LIMIT :most
