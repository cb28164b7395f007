SELECT id, name, hash, scopes, tenant, queues, max_priority, kinds, requests, rate,
       created_at, expires_at, revoked_at,
       coalesce(expires_at <= {now}, false)
  FROM token WHERE id = :id
