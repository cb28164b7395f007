-- Found by their age, and then by where they lie: a join would read every answer there is.
DELETE FROM idempotency
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM idempotency
                          WHERE created_at < {now} - :keep_us{micros}
                          ORDER BY created_at LIMIT :most))
RETURNING key
