-- Takes the next free slot of a source; answers with the microseconds until it.
INSERT INTO source_budget AS b (name, free_at, blocked_until)
VALUES (:name, {now} + :every_us, {now})
ON CONFLICT (name) DO UPDATE
  SET free_at = max(b.free_at, b.blocked_until, {now}) + :every_us
RETURNING free_at - :every_us - {now}
