-- Records that were refused.

-- name: quarantine_add
-- postgres
INSERT INTO quarantine (pipeline_id, key, root_id, version, type, reason, payload, at)
SELECT :pipeline_id, i.key, :root_id::uuid, i.version, i.type, i.reason, i.payload, {now}
  FROM unnest(:key::text[], :version::bigint[], :type::text[], :reason::text[], :payload::bytea[])
       AS i (key, version, type, reason, payload)
ON CONFLICT (pipeline_id, key, root_id) DO UPDATE
  SET version = excluded.version, type = excluded.type, reason = excluded.reason,
      payload = excluded.payload, at = excluded.at, resolved_at = NULL
-- sqlite: each
INSERT INTO quarantine (pipeline_id, key, root_id, version, type, reason, payload, at)
VALUES (:pipeline_id, :key, :root_id, :version, :type, :reason, :payload, {now})
ON CONFLICT (pipeline_id, key, root_id) DO UPDATE
  SET version = excluded.version, type = excluded.type, reason = excluded.reason,
      payload = excluded.payload, at = excluded.at, resolved_at = NULL

-- name: quarantine_count
SELECT count(*) FROM quarantine WHERE pipeline_id = :pipeline_id AND resolved_at IS NULL

-- name: quarantine_list
SELECT key, {text:root_id}, version, type, reason, payload, at
  FROM quarantine
 WHERE pipeline_id = :pipeline_id AND resolved_at IS NULL AND key > :after
 ORDER BY key
 LIMIT :most

-- name: quarantine_resolve
-- What was consolidated after all, by whichever root it was rejected; or is rejected anew by this one.
-- postgres
UPDATE quarantine SET resolved_at = {now}
 WHERE pipeline_id = :pipeline_id AND resolved_at IS NULL AND key = ANY (:key::text[])
   AND (root_id <> :root_id::uuid OR key <> ALL (:rejected::text[]))
RETURNING key
-- sqlite
UPDATE quarantine SET resolved_at = {now}
 WHERE pipeline_id = :pipeline_id AND resolved_at IS NULL AND key IN (SELECT value FROM json_each(:key))
   AND (root_id <> :root_id OR key NOT IN (SELECT value FROM json_each(:rejected)))
RETURNING key

-- name: run_unresolved
SELECT count(*) FROM quarantine WHERE root_id = :root_id AND resolved_at IS NULL

-- name: run_identified
-- Whether a run landed records without a key, and whether it landed any with one.
SELECT EXISTS (SELECT 1 FROM quarantine AS q
                WHERE q.root_id = :root_id AND q.resolved_at IS NULL AND q.key LIKE '?%'),
       EXISTS (SELECT 1 FROM raw AS r
                WHERE r.pipeline_id = :pipeline_id AND r.root_id = :root_id
                  AND r.key NOT LIKE '?%')
