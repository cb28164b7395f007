-- Queues on a broker: jobs are handed to it, told again, taken back, and claimed by their ids.

-- name: store_name
SELECT name FROM store_name

-- name: store_give_name
INSERT INTO store_name (name) VALUES (:name) ON CONFLICT (id) DO NOTHING

-- name: queue_transport
-- Where the jobs of a queue wait; a queue on the store needs no row to say so.
-- postgres
INSERT INTO queue (name, transport) SELECT :name::text, :transport::text
 WHERE :transport::text <> 'store' OR EXISTS (SELECT 1 FROM queue WHERE name = :name::text)
ON CONFLICT (name) DO UPDATE SET transport = excluded.transport
 WHERE queue.transport <> excluded.transport
-- sqlite
INSERT INTO queue (name, transport) SELECT :name, :transport
 WHERE :transport <> 'store' OR EXISTS (SELECT 1 FROM queue WHERE name = :name)
ON CONFLICT (name) DO UPDATE SET transport = excluded.transport
 WHERE queue.transport <> excluded.transport

-- name: queue_ready
-- The queues that have jobs READY, and where they wait, by hopping from one to the next along the index.
WITH RECURSIVE hop (name) AS (
  SELECT (SELECT queue FROM job WHERE state = 'READY' ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT queue FROM job WHERE state = 'READY' AND queue > hop.name ORDER BY queue LIMIT 1)
    FROM hop WHERE hop.name IS NOT NULL
)
SELECT hop.name, coalesce((SELECT transport FROM queue WHERE queue.name = hop.name), 'store')
  FROM hop WHERE hop.name IS NOT NULL

-- name: hint_room
-- How many jobs of a queue are on their way to its broker, or there, and whether it is paused. Where it is limited: how
-- many of them wait (one that was told twice may be blocked by another limit: it must not hold up all others), how
-- many run, and how far ahead of now its bucket is.
-- postgres
SELECT (SELECT count(*) FROM hint WHERE queue = :queue),
       (SELECT paused FROM queue WHERE queue.name = :queue) IS TRUE,
       (SELECT count(*) FROM hint JOIN job ON job.id = hint.job_id
         WHERE :limited::boolean AND hint.queue = :queue AND hint.tellings < 2 AND job.state || '' = 'QUEUED'),
       (SELECT count(*) FROM job WHERE :limited::boolean AND job.state = 'RUNNING' AND job.queue = :queue),
       coalesce((SELECT (extract(epoch FROM free_at - {now}) * 1000000)::double precision FROM bucket
                  WHERE scope = 'queue' AND key = :queue), 0)
-- sqlite
SELECT (SELECT count(*) FROM hint WHERE queue = :queue),
       (SELECT paused FROM queue WHERE queue.name = :queue) IS TRUE,
       (SELECT count(*) FROM hint CROSS JOIN job
         WHERE :limited AND hint.queue = :queue AND hint.tellings < 2 AND job.id = hint.job_id
           AND +job.state = 'QUEUED'),
       (SELECT count(*) FROM job INDEXED BY job_held
         WHERE :limited AND job.state = 'RUNNING' AND job.queue = :queue),
       coalesce((SELECT free_at - {now} FROM bucket WHERE scope = 'queue' AND key = :queue), 0)

-- name: hint_line
-- The first jobs of a queue that wait for its broker, their keys, units and kinds: those behind a
-- place in their order.
-- postgres
(SELECT {text:id}, limit_key, coalesce(units, 1), kind || ' ' || kind_version, priority, queued_seq, :number::bigint
   FROM job
  WHERE queue = :queue AND state = 'READY' AND priority = :priority::smallint AND queued_seq > :seq::bigint
  ORDER BY queued_seq
  LIMIT :most)
 UNION ALL
(SELECT {text:id}, limit_key, coalesce(units, 1), kind || ' ' || kind_version, priority, queued_seq, :number::bigint
   FROM job
  WHERE queue = :queue AND state = 'READY' AND priority < :priority::smallint
  ORDER BY priority DESC, queued_seq
  LIMIT :most)
-- sqlite
-- Jobs that were submitted together share a number: among them the rowid is the order.
SELECT * FROM (SELECT id, limit_key, coalesce(units, 1), kind || ' ' || kind_version, priority, queued_seq, rowid AS number FROM job INDEXED BY job_ready
                WHERE queue = :queue AND state = 'READY' AND priority = :priority AND queued_seq = :seq
                  AND rowid > :number
                ORDER BY rowid
                LIMIT :most)
 UNION ALL
SELECT * FROM (SELECT id, limit_key, coalesce(units, 1), kind || ' ' || kind_version, priority, queued_seq, rowid FROM job INDEXED BY job_ready
                WHERE queue = :queue AND state = 'READY' AND priority = :priority AND queued_seq > :seq
                ORDER BY queued_seq, rowid
                LIMIT :most)
 UNION ALL
SELECT * FROM (SELECT id, limit_key, coalesce(units, 1), kind || ' ' || kind_version, priority, queued_seq, rowid FROM job INDEXED BY job_ready
                WHERE queue = :queue AND state = 'READY' AND priority < :priority
                ORDER BY priority DESC, queued_seq, rowid
                LIMIT :most)

-- name: hint_keys
-- Of the keys that jobs of a queue on its broker have, and of these: how many are there, with how many units, and the
-- place of the first; how many run; how many keep the turn of their key between two attempts; how far ahead of now the
-- bucket is.
-- postgres
WITH told AS MATERIALIZED (
  SELECT job.limit_key AS key, count(*) AS n, sum(coalesce(job.units, 1)) AS units, min(job.queued_seq) AS seq
    FROM hint JOIN job ON job.id = hint.job_id
   WHERE hint.queue = :queue AND job.state || '' = 'QUEUED' AND job.limit_key IS NOT NULL
   GROUP BY job.limit_key
)
SELECT asked.key, coalesce(told.n, 0), coalesce(told.units, 0), told.seq, 0,
       (SELECT count(*) FROM job WHERE limit_key = asked.key AND worker_id IS NOT NULL),
       (SELECT count(*) FROM job
         WHERE limit_key = asked.key AND fence > 0 AND state IN {sleeping}),
       coalesce((extract(epoch FROM bucket.free_at - {now}) * 1000000)::double precision, 0)
  FROM (SELECT unnest(:key::text[]) UNION SELECT key FROM told) AS asked (key)
  LEFT JOIN told ON told.key = asked.key
  LEFT JOIN bucket ON bucket.scope = 'job' AND bucket.key = asked.key
-- sqlite
WITH told AS MATERIALIZED (
  SELECT job.limit_key AS key, count(*) AS n, sum(coalesce(job.units, 1)) AS units, min(job.queued_seq) AS seq, min(job.rowid) AS number
    FROM hint CROSS JOIN job
   WHERE hint.queue = :queue AND job.id = hint.job_id AND +job.state = 'QUEUED' AND job.limit_key IS NOT NULL
   GROUP BY job.limit_key
), leased AS MATERIALIZED (
  SELECT limit_key AS key, count(*) AS n FROM job INDEXED BY job_held
   WHERE state = 'RUNNING' AND limit_key IS NOT NULL
   GROUP BY limit_key
)
SELECT asked.key, coalesce(told.n, 0), coalesce(told.units, 0), told.seq, coalesce(told.number, 0),
       coalesce((SELECT n FROM leased WHERE leased.key = asked.key), 0),
       (SELECT count(*) FROM job INDEXED BY job_turn
         WHERE limit_key = asked.key AND fence > 0 AND state IN {sleeping}),
       coalesce(bucket.free_at - {now}, 0)
  FROM (SELECT value AS key FROM json_each(:key) UNION SELECT key FROM told) AS asked
  LEFT JOIN told ON told.key = asked.key
  LEFT JOIN bucket ON bucket.scope = 'job' AND bucket.key = asked.key

-- name: job_dispatch
-- Queues the first jobs of a queue, or those with these ids, and writes their hints, as far as there is room for more;
-- those that write them tell them, until their time is over. A paused queue hands out nothing.
-- postgres
WITH room AS MATERIALIZED (
  SELECT least(:batch::bigint, :most::bigint - (SELECT count(*) FROM hint WHERE queue = :queue)) AS n
   WHERE (SELECT paused FROM queue WHERE queue.name = :queue) IS NOT TRUE
), line AS MATERIALIZED (
  SELECT id, fence FROM job
   WHERE queue = :queue AND state = 'READY' AND :id::uuid[] IS NULL
   ORDER BY priority DESC, queued_seq
   LIMIT (SELECT greatest(0, max(n)) FROM room)
     FOR UPDATE SKIP LOCKED
), named AS MATERIALIZED (
  SELECT id, fence FROM job
   WHERE id = ANY (:id::uuid[]) AND queue = :queue AND CASE WHEN state = 'READY' THEN true ELSE false END
   LIMIT (SELECT greatest(0, max(n)) FROM room)
     FOR UPDATE SKIP LOCKED
), picked AS MATERIALIZED (
  SELECT id, fence FROM line UNION ALL SELECT id, fence FROM named
), moved AS (
UPDATE job
   SET state = 'QUEUED', move = 'dispatch', version = version + 1, actor = :actor, detail = NULL
  FROM picked
 WHERE job.id = picked.id AND picked.fence % 1 = 0
RETURNING job.id, job.version
)
INSERT INTO hint (job_id, queue, version, created_at, due_at)
SELECT id, :queue, version, {now}, {now} + :lease_us::bigint{micros} FROM moved
ON CONFLICT (job_id) DO UPDATE
   SET queue = excluded.queue, version = excluded.version, fence = hint.fence + 1, tellings = 0,
       created_at = excluded.created_at, due_at = excluded.due_at, told_at = NULL, error = NULL
RETURNING job_id::text, version, fence
-- sqlite
UPDATE job
   SET state = 'QUEUED', move = 'dispatch', version = version + 1, queued_seq = queued_seq,
       actor = :actor, detail = NULL
 WHERE rowid IN (
         SELECT rowid FROM (SELECT rowid FROM job INDEXED BY job_ready
                             WHERE queue = :queue AND state = 'READY' AND :id IS NULL
                             ORDER BY priority DESC, queued_seq
                             LIMIT max(0, min(:batch, :most - (SELECT count(*) FROM hint WHERE hint.queue = :queue))))
          UNION ALL
         SELECT rowid FROM job WHERE id IN (SELECT value FROM json_each(:id)) AND queue = :queue AND +state = 'READY')
   AND NOT EXISTS (SELECT 1 FROM queue WHERE queue.name = :queue AND paused)
RETURNING id, version, :lease_us

-- name: hint_write
-- Writes the hints of jobs that were queued just now.
-- postgres
-- Nothing to do: the move itself writes them, in one statement.
-- sqlite
INSERT INTO hint (job_id, queue, version, created_at, due_at)
SELECT t.id, :queue, t.version, {now}, {now} + :lease_us FROM {rows:id version} AS t WHERE true
ON CONFLICT (job_id) DO UPDATE
   SET queue = excluded.queue, version = excluded.version, fence = hint.fence + 1, tellings = 0,
       created_at = excluded.created_at, due_at = excluded.due_at, told_at = NULL, error = NULL
RETURNING job_id, version, fence

-- name: hint_adopt
-- Writes the hints of jobs that are queued and have none: moved by hand, by a program that does not know
-- the broker, or while it was away. Those under a limit may be more than may start: workers take them from the store.
-- postgres
INSERT INTO hint (job_id, queue, version, created_at, due_at)
SELECT id, :queue, version, {now}, {now} + :lease_us::bigint{micros}
  FROM job
 WHERE queue = :queue AND state = 'QUEUED'
   AND limit_key IS NULL
   AND (SELECT paused FROM queue WHERE queue.name = :queue) IS NOT TRUE
   AND NOT EXISTS (SELECT 1 FROM hint WHERE hint.job_id = job.id AND hint.version = job.version)
 ORDER BY priority DESC, limit_key, queued_seq
 LIMIT (SELECT greatest(0, least(:batch::bigint,
                                 :most::bigint - (SELECT count(*) FROM hint WHERE queue = :queue))))
ON CONFLICT (job_id) DO UPDATE
   SET queue = excluded.queue, version = excluded.version, fence = hint.fence + 1, tellings = 0,
       created_at = excluded.created_at, due_at = excluded.due_at, told_at = NULL, error = NULL
 WHERE hint.version < excluded.version
RETURNING job_id::text, version, fence
-- sqlite
INSERT INTO hint (job_id, queue, version, created_at, due_at)
SELECT id, :queue, version, {now}, {now} + :lease_us
  FROM job INDEXED BY job_claim
 WHERE queue = :queue AND state = 'QUEUED'
   AND limit_key IS NULL
   AND NOT EXISTS (SELECT 1 FROM queue WHERE queue.name = :queue AND paused)
   AND NOT EXISTS (SELECT 1 FROM hint WHERE hint.job_id = job.id AND hint.version = job.version)
 ORDER BY priority DESC, limit_key, queued_seq
 LIMIT max(0, min(:batch, :most - (SELECT count(*) FROM hint WHERE hint.queue = :queue)))
ON CONFLICT (job_id) DO UPDATE
   SET queue = excluded.queue, version = excluded.version, fence = hint.fence + 1, tellings = 0,
       created_at = excluded.created_at, due_at = excluded.due_at, told_at = NULL, error = NULL
 WHERE hint.version < excluded.version
RETURNING job_id, version, fence

-- name: hint_left
-- Whether any job under a limit is queued and has no hint.
SELECT EXISTS (SELECT 1 FROM job
                WHERE queue = :queue AND state = 'QUEUED' AND coalesce(limit_key, '') <> ''
                  AND NOT EXISTS (SELECT 1 FROM hint WHERE hint.job_id = job.id AND hint.version = job.version))
    OR EXISTS (SELECT 1 FROM limit_rule CROSS JOIN job
                WHERE limit_rule.scope = 'queue' AND limit_rule.name = :queue
                  AND job.queue = :queue AND job.state = 'QUEUED' AND job.limit_key IS NULL
                  AND NOT EXISTS (SELECT 1 FROM hint WHERE hint.job_id = job.id AND hint.version = job.version))

-- name: hint_take
-- Takes hints that are due, to be told again under a new fence. The few of a queue are walked over. None
-- that was told is taken while the broker says that at least half as many wait there: they are not lost,
-- and telling them again would make the line of those behind them longer each time.
-- postgres
WITH due AS MATERIALIZED (
  SELECT job_id, fence FROM hint
   WHERE queue = :queue AND due_at <= {now}
     AND (SELECT paused FROM queue WHERE queue.name = :queue) IS NOT TRUE
     AND (told_at IS NULL OR NOT EXISTS (
           SELECT 1 FROM broker_report
            WHERE side = 'queue' AND name = :queue AND error IS NULL
              AND reached_at > {now} - :fresh_us::bigint{micros}
              AND waiting * 2 >= (SELECT count(*) FROM hint WHERE queue = :queue)))
   ORDER BY due_at
   LIMIT :batch
     FOR UPDATE SKIP LOCKED
)
UPDATE hint SET fence = hint.fence + 1, due_at = {now} + :lease_us::bigint{micros}
  FROM due
 WHERE hint.job_id = due.job_id AND due.fence % 1 = 0
RETURNING hint.job_id::text, hint.version, hint.fence
-- sqlite
UPDATE hint SET fence = fence + 1, due_at = {now} + :lease_us
 WHERE rowid IN (SELECT rowid FROM hint
                  WHERE queue = :queue AND due_at <= {now}
                    AND NOT EXISTS (SELECT 1 FROM queue WHERE queue.name = :queue AND paused)
                    AND (told_at IS NULL OR NOT EXISTS (
                          SELECT 1 FROM broker_report
                           WHERE side = 'queue' AND name = :queue AND error IS NULL
                             AND reached_at > {now} - :fresh_us
                             AND waiting * 2 >= (SELECT count(*) FROM hint WHERE hint.queue = :queue)))
                  ORDER BY due_at
                  LIMIT :batch)
RETURNING job_id, version, fence

-- name: hint_clean
-- Removes the hints of a queue whose job is not queued any more, or was queued again since.
-- postgres
DELETE FROM hint
 WHERE job_id = ANY (ARRAY(
         SELECT job_id FROM hint
          WHERE queue = :queue
            AND NOT EXISTS (SELECT 1 FROM job
                             WHERE job.id = hint.job_id AND job.state = 'QUEUED'
                               AND job.version = hint.version
                            OFFSET 0)
            FOR UPDATE SKIP LOCKED))
RETURNING job_id
-- sqlite
DELETE FROM hint
 WHERE queue = :queue
   AND NOT EXISTS (SELECT 1 FROM job
                    WHERE job.id = hint.job_id AND job.state = 'QUEUED' AND job.version = hint.version)
RETURNING job_id

-- name: hint_told
-- The broker has them. They are told again later and later; no row back means that somebody else took
-- one meanwhile, or that it was claimed already.
-- postgres
UPDATE hint SET told_at = {now}, tellings = tellings + 1, error = NULL,
       due_at = {now} + least(:again_us::bigint * (1 << least(tellings, 20)), :longest_us::bigint){micros}
  FROM (SELECT job_id, held.fence
          FROM unnest(:id::uuid[], :fence::integer[]) AS held (id, fence)
          JOIN hint ON hint.job_id = held.id AND hint.fence = held.fence AND held.fence % 1 = 0
           FOR UPDATE OF hint SKIP LOCKED) AS held
 WHERE hint.job_id = held.job_id AND held.fence % 1 = 0
-- sqlite
UPDATE hint SET told_at = {now}, tellings = tellings + 1, error = NULL,
       due_at = {now} + min(:again_us * (1 << min(tellings, 20)), :longest_us)
  FROM {rows:id fence} AS held
 WHERE hint.job_id = held.id AND hint.fence = held.fence

-- name: hint_untold
-- The broker did not take them: why, and when they are tried again.
-- postgres
UPDATE hint SET error = :error, due_at = {now} + :delay_us::bigint{micros}
  FROM (SELECT job_id, held.fence
          FROM unnest(:id::uuid[], :fence::integer[]) AS held (id, fence)
          JOIN hint ON hint.job_id = held.id AND hint.fence = held.fence AND held.fence % 1 = 0
           FOR UPDATE OF hint SKIP LOCKED) AS held
 WHERE hint.job_id = held.job_id AND held.fence % 1 = 0
-- sqlite
UPDATE hint SET error = :error, due_at = {now} + :delay_us
  FROM {rows:id fence} AS held
 WHERE hint.job_id = held.id AND hint.fence = held.fence

-- name: job_undispatch
-- Takes back jobs that nobody claimed in time.
-- postgres
WITH old AS MATERIALIZED (
  SELECT job.id, job.fence FROM hint JOIN job ON job.id = hint.job_id
   WHERE hint.created_at <= {now} - :limit_us::bigint{micros}
     AND job.state = 'QUEUED' AND job.version = hint.version
   LIMIT :most
     FOR UPDATE OF job SKIP LOCKED
)
UPDATE job
   SET state = 'READY', move = 'undispatch', version = job.version + 1, actor = :actor,
       detail = 'nobody claimed it in time'
  FROM old
 WHERE job.id = old.id AND old.fence % 1 = 0
RETURNING job.id::text
-- sqlite
UPDATE job
   SET state = 'READY', move = 'undispatch', version = version + 1, queued_seq = queued_seq,
       actor = :actor, detail = 'nobody claimed it in time'
 WHERE rowid IN (SELECT job.rowid FROM hint CROSS JOIN job
                  WHERE hint.created_at <= {now} - :limit_us
                    AND job.id = hint.job_id AND job.state = 'QUEUED' AND job.version = hint.version
                  LIMIT :most)
RETURNING id

-- name: hint_forget
-- Removes old hints whose job is not queued any more: of queues that no program serves, too.
-- postgres
DELETE FROM hint
 WHERE job_id = ANY (ARRAY(
         SELECT job_id FROM hint
          WHERE created_at <= {now} - :limit_us::bigint{micros}
            AND NOT EXISTS (SELECT 1 FROM job
                             WHERE job.id = hint.job_id AND job.state = 'QUEUED'
                               AND job.version = hint.version
                            OFFSET 0)
          LIMIT :most
            FOR UPDATE SKIP LOCKED))
RETURNING job_id
-- sqlite
DELETE FROM hint
 WHERE rowid IN (SELECT rowid FROM hint
                  WHERE created_at <= {now} - :limit_us
                    AND NOT EXISTS (SELECT 1 FROM job
                                     WHERE job.id = hint.job_id AND job.state = 'QUEUED'
                                       AND job.version = hint.version)
                  LIMIT :most)
RETURNING job_id

-- name: job_enqueue
-- Queues jobs without a hint, for workers that scan: the broker is away, or the queue is on none any more.
-- postgres
WITH picked AS MATERIALIZED (
  SELECT found.id, found.fence
    FROM unnest(:queue::text[]) AS t (queue) CROSS JOIN LATERAL (
         SELECT id, fence FROM job
          WHERE job.queue = t.queue AND job.state = 'READY'
          ORDER BY priority DESC, queued_seq
          LIMIT (SELECT :most::bigint)
            FOR UPDATE SKIP LOCKED) found
   LIMIT :most
)
UPDATE job
   SET state = 'QUEUED', move = 'dispatch', version = version + 1, actor = :actor, detail = :detail::text
  FROM picked
 WHERE job.id = picked.id AND picked.fence % 1 = 0
RETURNING job.id::text
-- sqlite
UPDATE job
   SET state = 'QUEUED', move = 'dispatch', version = version + 1, queued_seq = queued_seq,
       actor = :actor, detail = :detail
 WHERE rowid IN (
         SELECT job.rowid FROM json_each(:queue) AS t CROSS JOIN job INDEXED BY job_ready
          WHERE job.queue = t.value AND job.state = 'READY'
          LIMIT :most)
RETURNING id

-- name: job_claim_hinted
-- Takes the jobs that hints name, where `job_claim` could; their hints leave with the same commit. Those under
-- a limit are for job_claim_limited.
-- postgres
WITH me AS MATERIALIZED (
  SELECT id FROM worker
   WHERE id = :worker_id AND state <> 'STOPPED' AND lease_until > {now}
     FOR KEY SHARE
), picked AS MATERIALIZED (
  SELECT id, fence
    FROM job
   WHERE id = ANY (ARRAY(SELECT unnest(:id::uuid[])))
     AND state = 'QUEUED' AND queue = :queue AND limit_key IS NULL
     AND (SELECT true FROM me)
     AND NOT EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'queue' AND name = :queue)
     AND (SELECT paused FROM queue WHERE queue.name = :queue) IS NOT TRUE
     AND (:kinds::text[] IS NULL OR kind || ' ' || kind_version = ANY(:kinds::text[]))
     AND {spent} IS NOT TRUE
     AND NOT {suspect}
     AND (run_id IS NULL
          OR (SELECT run.state FROM run WHERE run.id = job.run_id)
             IN {active})
     FOR UPDATE OF job SKIP LOCKED
), taken AS (
UPDATE job
   SET state = 'RUNNING', move = 'claim', version = version + 1, fence = job.fence + 1,
       worker_id = :worker_id, actor = :worker_id, detail = NULL, phase = NULL,
       started_at = coalesce(started_at, {now})
  FROM picked
 WHERE job.id = picked.id AND picked.fence % 1 = 0
RETURNING {columns:claim job. | job.deadline_at AS remaining_us
          | CASE WHEN job.due_at IS NOT NULL OR job.run_id IS NULL
            THEN coalesce(job.due_at, job.created_at) END AS waited_us AS waited_us}
), heard AS (
-- One that is just being told stays: dead, it is swept. Nobody waits for a hint while holding another.
DELETE FROM hint
 WHERE job_id = ANY (ARRAY(SELECT job_id FROM hint WHERE job_id = ANY (ARRAY(SELECT id FROM picked))
                              FOR UPDATE SKIP LOCKED))
), new AS MATERIALIZED (
  SELECT id FROM run
   WHERE id = ANY(ARRAY(SELECT DISTINCT run_id FROM taken WHERE run_id IS NOT NULL))
     AND state = 'QUEUED'
   ORDER BY depth DESC NULLS FIRST, id
     FOR NO KEY UPDATE
), begun AS (
UPDATE run
   SET state = 'RUNNING', move = 'begin', version = version + 1, actor = :worker_id, detail = NULL,
       started_at = coalesce(started_at, {now})
  FROM new
 WHERE run.id = new.id
)
SELECT {columns:claim
       | (extract(epoch FROM deadline_at - {now}) * 1000000)::bigint AS remaining_us
       | (date_part('epoch', {now} - waited_us) * 1000000)::bigint AS waited_us}
  FROM taken
-- sqlite: bytes 4
SELECT json_group_array(json_array(
         {columns:claim | fence + 1 AS fence | length(payload) AS payload
         | CASE WHEN deadline_at IS NOT NULL THEN deadline_at - {now} END AS remaining_us})),
       CAST(group_concat(payload, '') AS BLOB),
       json_group_array(number)
  FROM (SELECT job.rowid AS number,
               {columns:claim job. | job.deadline_at AS remaining_us
               | CASE WHEN job.due_at IS NOT NULL OR job.run_id IS NULL
                      THEN {now} - coalesce(job.due_at, job.created_at) END AS waited_us AS waited_us}
          FROM {rows:id} AS told CROSS JOIN job
         WHERE job.id = told.id AND job.state = 'QUEUED' AND job.queue = :queue AND job.limit_key IS NULL
           AND NOT EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'queue' AND name = :queue)
           AND (:kinds IS NULL OR kind || ' ' || kind_version IN (SELECT value FROM json_each(:kinds)))
           AND {spent} IS NOT TRUE
           AND NOT {suspect}
           AND (run_id IS NULL
                OR EXISTS (SELECT 1 FROM run
                            WHERE run.id = job.run_id
                              AND run.state IN {active}))
           AND EXISTS (SELECT 1 FROM worker
                        WHERE id = :worker_id AND state <> 'STOPPED' AND lease_until > {now})
           AND NOT EXISTS (SELECT 1 FROM queue WHERE queue.name = :queue AND paused))
-- then
UPDATE job
   SET state = 'RUNNING', move = 'claim', version = version + 1, fence = fence + 1,
       worker_id = :worker_id, actor = :worker_id, detail = NULL, phase = NULL,
       started_at = coalesce(started_at, {now})
 WHERE rowid IN (SELECT value FROM json_each(:picked))

-- name: hint_heard
-- Removes the hints of claimed jobs.
-- postgres
-- Nothing to do: the claim itself removes them.
-- sqlite
DELETE FROM hint WHERE job_id IN (SELECT value FROM json_each(:id))

-- name: hint_standing
-- Why hinted jobs could not be claimed: where they stand.
-- postgres
SELECT id::text, state, queue, kind || ' ' || kind_version,
       coalesce((SELECT paused FROM queue WHERE queue.name = job.queue), false),
       limit_key IS NOT NULL OR EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'queue' AND name = job.queue)
  FROM job WHERE id = ANY(:id::uuid[])
-- sqlite
SELECT id, state, queue, kind || ' ' || kind_version,
       coalesce((SELECT paused FROM queue WHERE queue.name = job.queue), 0),
       limit_key IS NOT NULL OR EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'queue' AND name = job.queue)
  FROM job WHERE id IN (SELECT value FROM json_each(:id))
