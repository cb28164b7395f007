-- Whoever sends a message again after that long is not recognised. Found by their age, and then by
-- where they lie: a join would read every message there is.
DELETE FROM inbox
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM inbox WHERE at <= {now} - :keep_us{micros}
                          ORDER BY at LIMIT :most))
RETURNING message_id
