-- Messages that came in, and the jobs and runs made of them.

-- name: inbox_add
-- No row back means that this message became a job or a run before. One that was refused may be right
-- this time, or wrong in another way.
INSERT INTO inbox (source, message_id, at, error, content)
VALUES (:source, :message_id, {now}, :error, :content)
ON CONFLICT (source, message_id) DO UPDATE
   SET at = excluded.at, error = excluded.error, content = excluded.content
 WHERE inbox.error IS NOT NULL
RETURNING message_id

-- name: inbox_forget
-- A message that is sent again after that long is not recognised.
-- postgres
-- Found by their age, and then by where they lie: a join would read every message there is.
DELETE FROM inbox
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM inbox WHERE at <= {now} - :keep_us{micros}
                          ORDER BY at LIMIT :most))
RETURNING message_id
-- sqlite
DELETE FROM inbox WHERE (source, message_id) IN (
  SELECT source, message_id FROM inbox WHERE at <= {now} - :keep_us{micros} ORDER BY at LIMIT :most)
RETURNING message_id

-- name: inbox_get
SELECT coalesce({text:job_id}, {text:run_id}) FROM inbox WHERE source = :source AND message_id = :message_id

-- name: inbox_became
UPDATE inbox SET job_id = :job_id, run_id = :run_id WHERE source = :source AND message_id = :message_id

-- name: inbox_refused
-- postgres
SELECT source, message_id, at, error, content
  FROM inbox
 WHERE error IS NOT NULL AND (:source::text IS NULL OR source = :source)
 ORDER BY at DESC
 LIMIT :most
-- sqlite
SELECT source, message_id, at, error, content
  FROM inbox
 WHERE error IS NOT NULL AND (:source IS NULL OR source = :source)
 ORDER BY at DESC
 LIMIT :most
