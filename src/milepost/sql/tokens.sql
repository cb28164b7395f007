-- Tokens of the HTTP API.

-- name: token_any
-- A revoked one counts: the door that one closed stays closed.
SELECT EXISTS (SELECT 1 FROM token),
       EXISTS (SELECT 1 FROM token
                WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > {now}))

-- name: token_create
INSERT INTO token (id, name, hash, scopes, tenant, queues, max_priority, kinds, requests, rate,
                   created_at, expires_at)
VALUES (:id, :name, :hash, :scopes, :tenant, :queues, :max_priority, :kinds, :requests, :rate,
        {now}, {now} + :expires_us{micros})
ON CONFLICT (name) WHERE revoked_at IS NULL DO NOTHING
RETURNING id

-- name: token_get
SELECT id, name, hash, scopes, tenant, queues, max_priority, kinds, requests, rate,
       created_at, expires_at, revoked_at,
       coalesce(expires_at <= {now}, false)
  FROM token WHERE id = :id

-- name: token_list
SELECT id, name, hash, scopes, tenant, queues, max_priority, kinds, requests, rate,
       created_at, expires_at, revoked_at,
       coalesce(expires_at <= {now}, false)
  FROM token ORDER BY created_at, id

-- name: token_revoke
UPDATE token SET revoked_at = {now}
 WHERE (id = :word OR name = :word) AND revoked_at IS NULL
RETURNING id
