-- The table of fences in a database of the user's own.

-- name: guard_exists
-- Whether a database of the user's own has the table of fences.
-- postgres
SELECT to_regclass('milepost_fence') IS NOT NULL
-- sqlite
SELECT count(*) FROM pragma_table_info('milepost_fence') WHERE name = 'fence'

-- name: guard_lock
-- postgres
-- Two that create one table at the same time would fail: the second waits for the first to commit.
SELECT pg_advisory_xact_lock(hashtext('milepost_fence'))
-- sqlite
-- A writer has SQLite to itself: there is nothing to wait for.
SELECT 1

-- name: guard_create
CREATE TABLE IF NOT EXISTS milepost_fence (
  job_id text NOT NULL PRIMARY KEY,
  fence bigint NOT NULL,
  at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP
)

-- name: guard_fence
-- Lets this attempt's transaction pass, and from its commit on none of an older attempt. No row back
-- means that a newer attempt was here.
INSERT INTO milepost_fence (job_id, fence) VALUES (:id, :fence)
ON CONFLICT (job_id) DO UPDATE SET fence = excluded.fence, at = CURRENT_TIMESTAMP
 WHERE milepost_fence.fence <= excluded.fence
RETURNING fence
