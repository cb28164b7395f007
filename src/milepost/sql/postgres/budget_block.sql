-- Keeps everybody from calling a source that asked for a pause.
INSERT INTO source_budget AS b (name, free_at, blocked_until)
VALUES (:name, {now} + :wait_us::bigint{micros}, {now} + :wait_us::bigint{micros})
ON CONFLICT (name) DO UPDATE
  SET free_at = greatest(b.free_at, excluded.free_at),
      blocked_until = greatest(b.blocked_until, excluded.blocked_until)
