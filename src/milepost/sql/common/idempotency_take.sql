-- On PostgreSQL it waits for a rival's transaction; no row back means that the rival has answered.
INSERT INTO idempotency (scope, key, fingerprint, created_at)
VALUES (:scope, :key, :fingerprint, {now})
ON CONFLICT (scope, key) DO NOTHING
RETURNING key
