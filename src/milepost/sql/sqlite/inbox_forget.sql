-- Whoever sends a message again after that long is not recognised.
DELETE FROM inbox WHERE (source, message_id) IN (
  SELECT source, message_id FROM inbox WHERE at <= {now} - :keep_us{micros} ORDER BY at LIMIT :most)
RETURNING message_id
