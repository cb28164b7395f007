-- Idempotency keys of the HTTP API.

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
