-- What nobody took within the time that failures are kept must not keep its job for ever. Found by
-- its age, and then by where it lies; CASE hides from the planner that another index would do too.
UPDATE outbox SET dead_at = {now}, error = coalesce(error, 'nobody took it in time')
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM outbox
                          WHERE delivered_at IS NULL AND dead_at IS NULL
                            AND created_at <= {now} - :keep_us{micros}
                          ORDER BY created_at LIMIT :most))
   AND CASE WHEN delivered_at IS NULL AND dead_at IS NULL THEN true ELSE false END
RETURNING id
