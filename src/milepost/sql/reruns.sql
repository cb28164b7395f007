-- Jobs that run finished ones again.

-- name: job_rerun
-- Creates jobs that run finished ones again: on their own, or held in a run that resumes theirs. A
-- fresh one has neither key nor steps of those before it.
-- postgres
-- Workers that rest are told.
WITH again AS (
INSERT INTO job (id, {columns:pinned}, state, move, actor, detail, deadline_at, start_by, codec, payload,
                 tags, tenant, limit_key, units, trace, channel, parent_id, rerun_of, origin_id, run_id, step,
                 ordinal, created_at)
SELECT t.new_id, {columns:pinned old.},
       CASE WHEN :state = 'QUEUED' AND (SELECT transport FROM queue WHERE queue.name = old.queue) <> 'store'
            THEN 'READY' ELSE :state END,
       'create', :actor, NULL,
       {now} + (old.deadline_at - old.created_at), {now} + (old.start_by - old.created_at),
       old.codec, old.payload, old.tags, old.tenant, old.limit_key, old.units, coalesce(:trace, old.trace),
       old.channel,
       old.parent_id, old.id, CASE WHEN NOT :fresh::boolean THEN coalesce(old.origin_id, old.id) END,
       :run_id, old.step, old.ordinal, {now}
  FROM unnest(:old_id::uuid[], :new_id::uuid[]) AS t (old_id, new_id)
 CROSS JOIN LATERAL (SELECT * FROM job WHERE job.id = t.old_id OFFSET 0) old
 ORDER BY t.new_id
RETURNING queue
)
SELECT pg_notify({channel}, queue) FROM (SELECT DISTINCT queue FROM again) AS told
 WHERE :state = 'QUEUED' AND EXISTS (SELECT 1 FROM worker WHERE state = 'IDLE')
-- sqlite
INSERT INTO job (id, queued_seq, {columns:pinned}, state, move, actor, detail,
                 deadline_at, start_by, codec, payload, tags, tenant, limit_key, units, trace, channel,
                 parent_id, rerun_of, origin_id, run_id, step, ordinal, created_at)
SELECT t.new_id, {number:old.limit_key old.queue old.priority}, {columns:pinned old.},
       CASE WHEN :state = 'QUEUED' AND (SELECT transport FROM queue WHERE queue.name = old.queue) <> 'store'
            THEN 'READY' ELSE :state END,
       'create', :actor, NULL, {now} + (old.deadline_at - old.created_at), {now} + (old.start_by - old.created_at),
       old.codec, old.payload, old.tags, old.tenant, old.limit_key, old.units, coalesce(:trace, old.trace),
       old.channel,
       old.parent_id, old.id, CASE WHEN NOT :fresh THEN coalesce(old.origin_id, old.id) END,
       :run_id, old.step, old.ordinal, {now}
  FROM {rows:old_id new_id} AS t CROSS JOIN job AS old
 WHERE old.id = t.old_id

-- name: rerun_chain
-- A job, those it runs again and those that run it again, the oldest first.
-- postgres
WITH RECURSIVE older (id, rerun_of, depth) AS (
  SELECT id, rerun_of, 0 FROM job WHERE id = :id
  UNION ALL
  SELECT job.id, job.rerun_of, older.depth - 1 FROM older JOIN job ON job.id = older.rerun_of
), newer (id, depth) AS (
  SELECT id, 1 FROM job WHERE rerun_of = :id
  UNION ALL
  SELECT found.id, newer.depth + 1
    FROM newer
   CROSS JOIN LATERAL (SELECT job.id FROM job WHERE job.rerun_of = newer.id OFFSET 0) found
), line (id, depth) AS (
  SELECT id, depth FROM older
  UNION ALL
  SELECT id, depth FROM newer
)
SELECT id::text FROM line ORDER BY depth, line.id
-- sqlite
WITH RECURSIVE older (id, rerun_of, depth) AS (
  SELECT id, rerun_of, 0 FROM job WHERE id = :id
  UNION ALL
  SELECT job.id, job.rerun_of, older.depth - 1 FROM older JOIN job ON job.id = older.rerun_of
), newer (id, depth) AS (
  SELECT id, 1 FROM job WHERE rerun_of = :id
  UNION ALL
  SELECT job.id, newer.depth + 1 FROM newer JOIN job ON job.rerun_of = newer.id
), line (id, depth) AS (
  SELECT id, depth FROM older
  UNION ALL
  SELECT id, depth FROM newer
)
SELECT id FROM line ORDER BY depth, line.id

-- name: rerun_lock
-- postgres
-- Another caller that runs one of them again waits, and retention lets it stay.
SELECT id::text, state, run_id::text, payload IS NULL, origin_id IS NOT NULL FROM job
 WHERE id = ANY (:id::uuid[])
 ORDER BY id
   FOR UPDATE
-- sqlite
SELECT id, state, run_id, payload IS NULL, origin_id IS NOT NULL FROM job
 WHERE id IN (SELECT value FROM json_each(:id))
 ORDER BY id

-- name: rerun_needs
-- The open jobs that go on with the steps of this one.
-- postgres
WITH RECURSIVE newer (id, state) AS (
  SELECT id, state FROM job WHERE rerun_of = :id AND origin_id IS NOT NULL
  UNION ALL
  SELECT found.id, found.state
    FROM newer
   CROSS JOIN LATERAL (SELECT job.id, job.state FROM job
                        WHERE job.rerun_of = newer.id AND job.origin_id IS NOT NULL OFFSET 0) found
)
SELECT id::text FROM newer WHERE state NOT IN {final}
-- sqlite
WITH RECURSIVE newer (id, state) AS (
  SELECT id, state FROM job WHERE rerun_of = :id AND origin_id IS NOT NULL
  UNION ALL
  SELECT job.id, job.state
    FROM newer JOIN job ON job.rerun_of = newer.id
   WHERE job.origin_id IS NOT NULL
)
SELECT id FROM newer WHERE state NOT IN {final}

-- name: rerun_newest
-- The jobs that run these again, one after the other, the newest last.
-- postgres
WITH RECURSIVE newer (first_id, id, depth) AS (
  SELECT t.id, found.id, 1
    FROM unnest(:id::uuid[]) AS t (id)
   CROSS JOIN LATERAL (SELECT job.id FROM job WHERE job.rerun_of = t.id OFFSET 0) found
  UNION ALL
  SELECT newer.first_id, found.id, newer.depth + 1
    FROM newer
   CROSS JOIN LATERAL (SELECT job.id FROM job WHERE job.rerun_of = newer.id OFFSET 0) found
)
SELECT first_id::text, id::text FROM newer ORDER BY depth, newer.id
-- sqlite
WITH RECURSIVE newer (first_id, id, depth) AS (
  SELECT t.value, job.id, 1 FROM json_each(:id) AS t CROSS JOIN job WHERE job.rerun_of = t.value
  UNION ALL
  SELECT newer.first_id, job.id, newer.depth + 1
    FROM newer CROSS JOIN job
   WHERE job.rerun_of = newer.id
)
SELECT first_id, id FROM newer ORDER BY depth, id

-- name: rerun_older
-- The jobs before this one whose steps it goes on with.
WITH RECURSIVE older (id, before, depth) AS (
  SELECT id, rerun_of, 0 FROM job WHERE id = :id AND origin_id IS NOT NULL
  UNION ALL
  SELECT job.id, CASE WHEN job.origin_id IS NOT NULL THEN job.rerun_of END, older.depth + 1
    FROM older JOIN job ON job.id = older.before
)
SELECT {text:id} FROM older WHERE depth > 0

-- name: rerun_standing
-- How jobs stand that somebody would act on, counted: the state, whether it is an action on many jobs itself, a
-- run's, erased, or goes on with steps that were; the state of the newest rerun of it, and whether that goes on with its steps;
-- the type of its last error, and when the last of them ended.
-- postgres
WITH RECURSIVE given AS MATERIALIZED (
  SELECT job.id, job.state, job.kind = :bulk AS is_bulk, job.run_id, job.payload IS NULL AS erased,
         job.origin_id IS NOT NULL AS goes_on, job.error_type, job.finished_at
    FROM unnest(:id::uuid[]) AS t (id)
   CROSS JOIN LATERAL (SELECT * FROM job WHERE job.id = t.id OFFSET 0) AS job
), newer (first_id, id, state, goes_on, depth) AS (
  SELECT given.id, found.id, found.state, found.origin_id IS NOT NULL, 1
    FROM given
   CROSS JOIN LATERAL (SELECT * FROM job WHERE job.rerun_of = given.id OFFSET 0) AS found
  UNION ALL
  SELECT newer.first_id, found.id, found.state, found.origin_id IS NOT NULL, newer.depth + 1
    FROM newer
   CROSS JOIN LATERAL (SELECT * FROM job WHERE job.rerun_of = newer.id OFFSET 0) AS found
), newest AS (
  SELECT DISTINCT ON (first_id) first_id, state, goes_on FROM newer ORDER BY first_id, depth DESC
), older (first_id, before, erased) AS (
  SELECT given.id, job.rerun_of, false FROM given JOIN job ON job.id = given.id WHERE given.goes_on
  UNION ALL
  SELECT older.first_id, CASE WHEN job.origin_id IS NOT NULL THEN job.rerun_of END, job.payload IS NULL
    FROM older JOIN job ON job.id = older.before
)
SELECT given.state, given.is_bulk, given.run_id IS NOT NULL,
       given.erased OR EXISTS (SELECT 1 FROM older WHERE older.first_id = given.id AND older.erased),
       newest.state, coalesce(newest.goes_on, false), given.error_type,
       count(*), max(given.finished_at), max(given.run_id::text)
  FROM given LEFT JOIN newest ON newest.first_id = given.id
 GROUP BY 1, 2, 3, 4, 5, 6, 7
-- sqlite
WITH RECURSIVE given AS MATERIALIZED (
  SELECT job.id, job.state, job.kind = :bulk AS is_bulk, job.run_id, job.payload IS NULL AS erased,
         job.origin_id IS NOT NULL AS goes_on, job.error_type, job.finished_at
    FROM json_each(:id) AS t CROSS JOIN job ON job.id = t.value
), newer (first_id, id, state, goes_on, depth) AS (
  SELECT given.id, found.id, found.state, found.origin_id IS NOT NULL, 1
    FROM given CROSS JOIN job AS found ON found.rerun_of = given.id
  UNION ALL
  SELECT newer.first_id, found.id, found.state, found.origin_id IS NOT NULL, newer.depth + 1
    FROM newer CROSS JOIN job AS found ON found.rerun_of = newer.id
), newest AS MATERIALIZED (
  SELECT first_id, state, goes_on, max(depth) FROM newer GROUP BY first_id
), older (first_id, before, erased) AS (
  SELECT given.id, job.rerun_of, 0 FROM given CROSS JOIN job ON job.id = given.id WHERE given.goes_on
  UNION ALL
  SELECT older.first_id, CASE WHEN job.origin_id IS NOT NULL THEN job.rerun_of END, job.payload IS NULL
    FROM older CROSS JOIN job ON job.id = older.before
)
SELECT given.state, given.is_bulk, given.run_id IS NOT NULL,
       given.erased OR EXISTS (SELECT 1 FROM older WHERE older.first_id = given.id AND older.erased),
       newest.state, coalesce(newest.goes_on, 0), given.error_type,
       count(*), max(given.finished_at), max(given.run_id)
  FROM given LEFT JOIN newest ON newest.first_id = given.id
 GROUP BY 1, 2, 3, 4, 5, 6, 7
