INSERT INTO channel (name, kind, target, tenant, seen_at)
VALUES (:name, :kind, :target, :tenant, {now})
ON CONFLICT (name) DO UPDATE
   SET kind = excluded.kind, target = excluded.target, tenant = excluded.tenant, seen_at = excluded.seen_at
