-- Takes the next free slot of a source; answers with the microseconds until it.
INSERT INTO source_budget AS b (name, free_at, blocked_until)
VALUES (:name, {now} + :every_us::bigint{micros}, {now})
ON CONFLICT (name) DO UPDATE
  SET free_at = greatest(b.free_at, b.blocked_until, {now}) + :every_us::bigint{micros}
RETURNING (extract(epoch FROM free_at - :every_us::bigint{micros} - {now}) * 1000000)::bigint
