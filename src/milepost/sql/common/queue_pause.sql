INSERT INTO queue (name, paused, paused_at, paused_by) VALUES (:name, :paused, {now}, :actor)
ON CONFLICT (name) DO UPDATE
   SET paused = excluded.paused, paused_at = excluded.paused_at, paused_by = excluded.paused_by
