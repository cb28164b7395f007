-- What nobody took within the time that failures are kept must not keep its job for ever.
UPDATE outbox SET dead_at = {now}, error = coalesce(error, 'nobody took it in time')
 WHERE id IN (SELECT id FROM outbox
               WHERE delivered_at IS NULL AND dead_at IS NULL AND created_at <= {now} - :keep_us{micros}
               ORDER BY created_at LIMIT :most)
   AND delivered_at IS NULL AND dead_at IS NULL
RETURNING id
