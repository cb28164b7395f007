-- Idempotency keys of the HTTP API, and unique keys that stay taken for a while.

-- name: idempotency_answer
UPDATE idempotency SET answer = :answer WHERE scope = :scope AND key = :key

-- name: idempotency_get
SELECT fingerprint, answer FROM idempotency WHERE scope = :scope AND key = :key

-- name: idempotency_prune
-- postgres
-- Found by their age, and then by where they lie: a join would read every answer there is.
DELETE FROM idempotency
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM idempotency
                          WHERE created_at < {now} - :keep_us{micros}
                          ORDER BY created_at LIMIT :most))
RETURNING key
-- sqlite
DELETE FROM idempotency
 WHERE (scope, key) IN (SELECT scope, key FROM idempotency
                         WHERE created_at < {now} - :keep_us{micros} ORDER BY created_at LIMIT :most)
RETURNING key

-- name: idempotency_take
-- On PostgreSQL it waits for a rival's transaction; no row back means that the rival has answered.
INSERT INTO idempotency (scope, key, fingerprint, created_at)
VALUES (:scope, :key, :fingerprint, {now})
ON CONFLICT (scope, key) DO NOTHING
RETURNING key

-- name: unique_held
-- Tells whether a key is still taken.
-- postgres
SELECT key FROM idempotency
 WHERE scope = :scope AND key = :key AND created_at > {now} - :for_us::bigint{micros}
-- sqlite
SELECT key FROM idempotency WHERE scope = :scope AND key = :key AND created_at > {now} - :for_us

-- name: unique_keep
UPDATE idempotency SET fingerprint = :fingerprint WHERE scope = :scope AND key = :key

-- name: unique_take
-- Takes a key for a while; the fingerprint is the job's id. No row back: it is taken, and the rival has answered.
-- postgres
INSERT INTO idempotency (scope, key, fingerprint, answer, created_at)
VALUES (:scope, :key, :fingerprint, '', {now})
ON CONFLICT (scope, key) DO UPDATE
   SET fingerprint = excluded.fingerprint, created_at = excluded.created_at
 WHERE idempotency.created_at <= {now} - :for_us::bigint{micros}
RETURNING key
-- sqlite
INSERT INTO idempotency (scope, key, fingerprint, answer, created_at)
VALUES (:scope, :key, :fingerprint, x'', {now})
ON CONFLICT (scope, key) DO UPDATE
   SET fingerprint = excluded.fingerprint, created_at = excluded.created_at
 WHERE idempotency.created_at <= {now} - :for_us
RETURNING key
