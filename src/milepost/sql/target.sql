-- The table that a pipeline keeps. It is a user's type that says which: see "Templates" in README.md.

-- name: target:create
CREATE TABLE IF NOT EXISTS {table} ({definition})

-- name: target:lock
-- postgres
LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE
-- sqlite
-- One writer at a time: there is nothing to lock.

-- name: target:add
ALTER TABLE {table} ADD COLUMN {column}

-- name: target:insert
-- Writes records, if the job is held: others have done the work of one that is not.
-- postgres
-- Its commit need not wait for the disk: the one that marks these pages as consolidated comes after
-- it in the log, and does. Until then they are written again.
INSERT INTO {table} ({columns}, source_version, content_hash, made_with, run_id)
SELECT {values}, i.version, i.hash, :made_with::bigint, :run_id::uuid
  FROM (SELECT set_config('synchronous_commit', 'off', true)) AS lazy,
       unnest({lists}, :version::bigint[], :hash::bytea[]) AS i ({names}, version, hash)
 WHERE EXISTS (SELECT 1 FROM job
                WHERE job.id = :job_id::uuid AND job.fence = :fence AND job.state = 'RUNNING')
-- sqlite
INSERT INTO {table} ({columns}, source_version, content_hash, made_with, run_id)
SELECT {values}, i.version, i.hash, :made_with, :run_id
  FROM {rows:{lists} version hash*} AS i
 WHERE EXISTS (SELECT 1 FROM job
                WHERE job.id = :job_id AND job.fence = :fence AND job.state = 'RUNNING')

-- name: target:upsert
-- Replaces a record by one that is not older (H-83); one that was removed is back.
{target:insert}
ON CONFLICT ({key}) DO UPDATE SET {replaced}, removed_at = NULL
 WHERE {table}.source_version <= excluded.source_version

-- name: target:number
-- A key's text as the number that the table has; a text that is no number is nobody's key.
-- postgres
-- Only a number may be compared as one: an AND promises no order. As it is spelled: 007 is another
-- record's key than 7.
CASE WHEN i.key ~ '^(0|-?[1-9][0-9]{0,18})$'
     THEN CASE WHEN i.key::numeric BETWEEN -9223372036854775808 AND 9223372036854775807
               THEN i.key::bigint END END
-- sqlite
CASE WHEN CAST(CAST(i.key AS INTEGER) AS TEXT) = i.key THEN CAST(i.key AS INTEGER) END

-- name: target:check
-- The keys that stand here with the landing table's content, made as it is made now.
-- postgres
SELECT i.key FROM unnest(:key::text[], :hash::bytea[]) AS i (key, hash)
  JOIN {table} AS t ON t.{key} = {own_key} AND t.content_hash = i.hash
 WHERE t.removed_at IS NULL AND t.made_with = :made_with::bigint
-- sqlite
SELECT i.key FROM {rows:key hash*} AS i
  JOIN {table} AS t ON t.{key} = {own_key} AND t.content_hash = i.hash
 WHERE t.removed_at IS NULL AND t.made_with = :made_with

-- name: target:remove
-- postgres
UPDATE {table} SET removed_at = {now}
 WHERE removed_at IS NULL AND {key} IN (SELECT {own_key} FROM unnest(:key::text[]) AS i (key))
RETURNING {key}
-- sqlite
UPDATE {table} SET removed_at = {now}
 WHERE removed_at IS NULL
   AND {key} IN (SELECT {own_key} FROM (SELECT value AS key FROM json_each(:key)) AS i)
RETURNING {key}

-- name: target:restore
-- postgres
UPDATE {table} SET removed_at = NULL
 WHERE {key} IN (SELECT {own_key} FROM unnest(:key::text[]) AS i (key))
-- sqlite
UPDATE {table} SET removed_at = NULL
 WHERE {key} IN (SELECT {own_key} FROM (SELECT value AS key FROM json_each(:key)) AS i)

-- name: target:vacate
-- Records of another pipeline are not this one's: they are back once they are read again.
UPDATE {table} SET removed_at = coalesce(removed_at, {now}), source_version = {oldest}, content_hash = NULL

-- name: target:read
SELECT {shown} FROM {table}
 WHERE removed_at IS NULL
   AND (CAST(:after AS {key_type}) IS NULL OR {key} > CAST(:after AS {key_type}))
 ORDER BY {key}
 LIMIT :most

-- name: target:count
SELECT count(*) FROM {table} WHERE removed_at IS NULL

-- name: target:behind
-- Records made with anything else; those in quarantine cannot be made anew.
-- postgres
SELECT count(*) FROM {table} AS t
 WHERE t.removed_at IS NULL AND t.made_with IS DISTINCT FROM :made_with::bigint
   AND NOT EXISTS (SELECT 1 FROM quarantine AS q
                    WHERE q.pipeline_id = :pipeline_id AND q.resolved_at IS NULL
                      AND q.key = CAST(t.{key} AS text))
-- sqlite
SELECT count(*) FROM {table} AS t
 WHERE t.removed_at IS NULL AND t.made_with IS NOT :made_with
   AND NOT EXISTS (SELECT 1 FROM quarantine AS q
                    WHERE q.pipeline_id = :pipeline_id AND q.resolved_at IS NULL
                      AND q.key = CAST(t.{key} AS text))

-- name: target:unlanded
-- Records of which nothing is landed.
SELECT count(*) FROM {table} AS t
 WHERE t.removed_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM raw AS q
                    WHERE q.pipeline_id = :pipeline_id AND q.key = CAST(t.{key} AS text))
