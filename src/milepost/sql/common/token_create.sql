INSERT INTO token (id, name, hash, scopes, tenant, queues, max_priority, kinds, requests, rate,
                   created_at, expires_at)
VALUES (:id, :name, :hash, :scopes, :tenant, :queues, :max_priority, :kinds, :requests, :rate,
        {now}, {now} + :expires_us{micros})
ON CONFLICT (name) WHERE revoked_at IS NULL DO NOTHING
RETURNING id
