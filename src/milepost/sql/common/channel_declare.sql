INSERT INTO channel (name, kind, target, seen_at) VALUES (:name, :kind, :target, {now})
ON CONFLICT (name) DO UPDATE
   SET kind = excluded.kind, target = excluded.target, seen_at = excluded.seen_at
