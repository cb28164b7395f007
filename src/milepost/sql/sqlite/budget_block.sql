-- Keeps everybody from calling a source that asked for a pause.
INSERT INTO source_budget AS b (name, free_at, blocked_until)
VALUES (:name, {now} + :wait_us, {now} + :wait_us)
ON CONFLICT (name) DO UPDATE
  SET free_at = max(b.free_at, excluded.free_at),
      blocked_until = max(b.blocked_until, excluded.blocked_until)
