DELETE FROM idempotency
 WHERE (scope, key) IN (SELECT scope, key FROM idempotency
                         WHERE created_at < {now} - :keep_us{micros} ORDER BY created_at LIMIT :most)
RETURNING key
