-- Durable steps, cursors and progress within a job.

-- name: durable_look
-- What an attempt that holds its job knows of one step. No row back means the lease was lost.
SELECT durable_step.name, durable_step.result
  FROM job LEFT JOIN durable_step ON durable_step.job_id = job.id AND durable_step.name = :name
 WHERE job.id = :id AND job.fence = :fence AND job.state = 'RUNNING'

-- name: durable_look_back
-- What a job that goes on with the steps of others knows of one step: the newest record counts. No
-- row back means the lease was lost.
WITH RECURSIVE older (id, before, depth) AS (
  SELECT id, rerun_of, 0 FROM job
   WHERE id = :id AND fence = :fence AND state = 'RUNNING'
  UNION ALL
  SELECT job.id, CASE WHEN job.origin_id IS NOT NULL THEN job.rerun_of END, older.depth + 1
    FROM older JOIN job ON job.id = older.before
)
SELECT durable_step.name, durable_step.result
  FROM older LEFT JOIN durable_step ON durable_step.job_id = older.id AND durable_step.name = :name
 ORDER BY CASE WHEN durable_step.name IS NULL THEN 1 ELSE 0 END, older.depth
 LIMIT 1

-- name: durable_record
-- Records that a step is done. No row back means the lease was lost. Recording again what this
-- attempt recorded already, because the answer was lost, changes nothing.
-- postgres
-- The job's row is held, so that nobody can take the job between the look at it and the commit. The
-- commit follows at once: the server does not wait long for it, since recovery needs the
-- row.
WITH held AS MATERIALIZED (
  SELECT id, fence,
         set_config('idle_in_transaction_session_timeout',
                    coalesce(nullif(current_setting('milepost.idle', true), ''), '10s'), true)
    FROM job WHERE id = :id AND fence = :fence AND state = 'RUNNING'
     FOR NO KEY UPDATE
)
INSERT INTO durable_step (job_id, name, fence, at, result)
SELECT id, :name::text, fence, {now}, :result::bytea FROM held
ON CONFLICT (job_id, name) DO UPDATE SET result = excluded.result
 WHERE durable_step.fence = excluded.fence
RETURNING fence
-- sqlite
INSERT INTO durable_step (job_id, name, fence, at, result)
SELECT id, :name, fence, {now}, :result FROM job
 WHERE id = :id AND fence = :fence AND state = 'RUNNING'
ON CONFLICT (job_id, name) DO UPDATE SET result = excluded.result
 WHERE durable_step.fence = excluded.fence
RETURNING fence

-- name: cursor_get
-- Where the attempts before this one came to. No row back means the lease was lost.
SELECT coalesce(progress.saves, 0), progress.position, coalesce(progress.fence, 0)
  FROM job LEFT JOIN progress ON progress.job_id = job.id
 WHERE job.id = :id AND job.fence = :fence AND job.state = 'RUNNING'

-- name: cursor_look_back
-- Where the jobs before this one came to, for one that has not saved a cursor of its own yet.
WITH RECURSIVE older (id, before, depth) AS (
  SELECT id, rerun_of, 0 FROM job WHERE id = :id
  UNION ALL
  SELECT job.id, CASE WHEN job.origin_id IS NOT NULL THEN job.rerun_of END, older.depth + 1
    FROM older JOIN job ON job.id = older.before
)
SELECT progress.position
  FROM older JOIN progress ON progress.job_id = older.id
 WHERE progress.saves > 0
 ORDER BY older.depth
 LIMIT 1

-- name: cursor_save
-- Moves a cursor on from the save it was read at. No row back: the lease was lost, or somebody else
-- has saved meanwhile.
-- postgres
-- The job's row is held until the commit.
WITH held AS MATERIALIZED (
  SELECT id, fence FROM job WHERE id = :id AND fence = :fence AND state = 'RUNNING'
     FOR NO KEY UPDATE
)
INSERT INTO progress (job_id, fence, position, saves, created_at, updated_at)
SELECT id, fence, :position::bytea, 1, {now}, {now} FROM held
ON CONFLICT (job_id) DO UPDATE
  SET fence = excluded.fence, position = excluded.position, saves = progress.saves + 1,
      updated_at = excluded.updated_at
 WHERE progress.saves = :saves
RETURNING saves
-- sqlite
INSERT INTO progress (job_id, fence, position, saves, created_at, updated_at)
SELECT id, fence, :position, 1, {now}, {now} FROM job
 WHERE id = :id AND fence = :fence AND state = 'RUNNING'
ON CONFLICT (job_id) DO UPDATE
  SET fence = excluded.fence, position = excluded.position, saves = progress.saves + 1,
      updated_at = excluded.updated_at
 WHERE progress.saves = :saves
RETURNING saves

-- name: progress_tell
-- What running attempts say of themselves. One that ended a moment ago may still be heard, while no
-- other attempt has begun and nothing was erased.
-- postgres
WITH told AS MATERIALIZED (
  SELECT job.id, job.fence, t.fraction, t.message
    FROM unnest(:id::uuid[], :fence::bigint[], :fraction::float8[], :message::text[])
         AS t (id, fence, fraction, message)
    JOIN job ON job.id = t.id AND job.fence = t.fence AND job.move <> 'erase'
   ORDER BY job.id
     FOR NO KEY UPDATE OF job
)
INSERT INTO progress (job_id, fence, fraction, message, created_at, updated_at)
SELECT id, fence, fraction, message, {now}, {now} FROM told
ON CONFLICT (job_id) DO UPDATE
  SET fence = excluded.fence, fraction = excluded.fraction, message = excluded.message,
      updated_at = excluded.updated_at
-- sqlite: each
INSERT INTO progress (job_id, fence, fraction, message, created_at, updated_at)
SELECT id, fence, :fraction, :message, {now}, {now} FROM job
 WHERE id = :id AND fence = :fence AND move <> 'erase'
ON CONFLICT (job_id) DO UPDATE
  SET fence = excluded.fence, fraction = excluded.fraction, message = excluded.message,
      updated_at = excluded.updated_at

-- name: log_hold
-- The lines of jobs, whose rows are held: no other writer of theirs reads before this one has written.
-- postgres
SELECT job.id::text, job_log.content
  FROM unnest(:id::uuid[], :fence::bigint[]) AS t (id, fence)
  JOIN job ON job.id = t.id AND job.fence = t.fence AND job.move <> 'erase'
  LEFT JOIN job_log ON job_log.job_id = job.id
 ORDER BY job.id
   FOR NO KEY UPDATE OF job
-- sqlite: each
SELECT job.id, job_log.content
  FROM job LEFT JOIN job_log ON job_log.job_id = job.id
 WHERE job.id = :id AND job.fence = :fence AND job.move <> 'erase'

-- name: log_write
-- postgres
INSERT INTO job_log (job_id, fence, at, content)
SELECT t.id, t.fence, {now}, t.content
  FROM unnest(:id::uuid[], :fence::bigint[], :content::text[]) AS t (id, fence, content)
ON CONFLICT (job_id) DO UPDATE
  SET fence = excluded.fence, at = excluded.at, content = excluded.content
-- sqlite: each
INSERT INTO job_log (job_id, fence, at, content) VALUES (:id, :fence, {now}, :content)
ON CONFLICT (job_id) DO UPDATE
  SET fence = excluded.fence, at = excluded.at, content = excluded.content

-- name: log_read
SELECT content FROM job_log WHERE job_id = :id
