-- Tried again later, or dead after so many failures. What was not its fault spends nothing.
UPDATE outbox SET attempts = attempts + :spent, error = :error, due_at = {now} + :delay_us{micros},
       dead_at = CASE WHEN attempts + :spent >= :most THEN {now} END
 WHERE id = :id AND fence = :fence AND delivered_at IS NULL AND dead_at IS NULL
RETURNING dead_at
