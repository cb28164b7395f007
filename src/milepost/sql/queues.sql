-- Queues.

-- name: queue_list
-- Every queue that is declared, was ever paused or has jobs in line, and for how many microseconds the first of
-- those has been in it, whichever its priority. Numbers are taken on the way in, so the first of each priority, with
-- a limit and without, is its oldest; its last entry says since when.
-- postgres
WITH RECURSIVE hop (name) AS (
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' AND queue > hop.name ORDER BY queue LIMIT 1)
    FROM hop WHERE hop.name IS NOT NULL
), named AS (
  SELECT name FROM hop WHERE name IS NOT NULL
   UNION
  SELECT name FROM queue
   UNION
  SELECT name FROM queue_bound WHERE max_waiting IS NOT NULL
)
SELECT named.name, queue.paused, queue.paused_at, queue.paused_by, queue.reason, queue_bound.max_waiting,
       queue.transport,
       (SELECT (extract(epoch FROM {now} - min(journal.at)) * 1000000)::bigint
          FROM generate_series(0, 9) AS rank (priority)
         CROSS JOIN LATERAL (
               (SELECT id, version FROM job
                 WHERE job.queue = named.name AND job.priority = rank.priority AND job.state = 'QUEUED'
                   AND limit_key IS NULL
                 ORDER BY limit_key, queued_seq LIMIT 1)
                UNION ALL
               (SELECT id, version FROM job
                 WHERE job.queue = named.name AND job.priority = rank.priority AND job.state = 'QUEUED'
                   AND coalesce(limit_key, '') <> ''
                 ORDER BY queued_seq LIMIT 1)) AS first
          JOIN journal ON journal.subject_id = first.id AND machine = 'job' AND seq = first.version)
  FROM named
  LEFT JOIN queue ON queue.name = named.name
  LEFT JOIN queue_bound ON queue_bound.name = named.name
 ORDER BY named.name
-- sqlite
WITH RECURSIVE hop (name) AS (
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' AND queue > hop.name ORDER BY queue LIMIT 1)
    FROM hop WHERE hop.name IS NOT NULL
), rank (priority) AS (
  VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)
), named AS (
  SELECT name FROM hop WHERE name IS NOT NULL
   UNION
  SELECT name FROM queue
   UNION
  SELECT name FROM queue_bound WHERE max_waiting IS NOT NULL
)
SELECT named.name, queue.paused, queue.paused_at, queue.paused_by, queue.reason, queue_bound.max_waiting,
       queue.transport,
       (SELECT max({now} - journal.at)
          FROM rank
         CROSS JOIN job ON job.rowid IN (
               (SELECT first.rowid FROM job AS first
                 WHERE first.queue = named.name AND first.priority = rank.priority
                   AND first.state = 'QUEUED' AND first.limit_key IS NULL
                 ORDER BY first.queued_seq LIMIT 1),
               (SELECT first.rowid FROM job AS first
                 WHERE first.queue = named.name AND first.priority = rank.priority
                   AND first.state = 'QUEUED' AND coalesce(first.limit_key, '') <> ''
                 ORDER BY first.queued_seq LIMIT 1))
         CROSS JOIN journal ON journal.subject_id = job.id AND machine = 'job' AND seq = job.version)
  FROM named
  LEFT JOIN queue ON queue.name = named.name
  LEFT JOIN queue_bound ON queue_bound.name = named.name
 ORDER BY named.name

-- name: queue_pause
INSERT INTO queue (name, paused, paused_at, paused_by, reason) VALUES (:name, :paused, {now}, :actor, :reason)
ON CONFLICT (name) DO UPDATE
   SET paused = excluded.paused, paused_at = excluded.paused_at, paused_by = excluded.paused_by,
       reason = excluded.reason

-- name: queue_waiting
-- The queues that have something to claim, by hopping from one to the next along the index.
WITH RECURSIVE hop (name) AS (
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' AND queue > hop.name ORDER BY queue LIMIT 1)
    FROM hop WHERE hop.name IS NOT NULL
)
SELECT name FROM hop WHERE name IS NOT NULL

-- name: queue_kinds
-- What the first jobs in a queue's line are.
SELECT kind, kind_version, count(*)
  FROM (SELECT kind, kind_version FROM job
         WHERE queue = :name AND state = 'QUEUED'
         ORDER BY priority DESC, limit_key, queued_seq
         LIMIT :most) AS first
 GROUP BY kind, kind_version
 ORDER BY kind, kind_version

-- name: queue_bound
INSERT INTO queue_bound (name, max_waiting) VALUES (:name, :max_waiting)
ON CONFLICT (name) DO UPDATE SET max_waiting = excluded.max_waiting

-- name: queue_bounds
SELECT name, max_waiting FROM queue_bound WHERE max_waiting IS NOT NULL

-- name: queue_depth
-- Counts up to so many: a long queue costs no more than a full one. Those that a broker is to be told of wait, too.
SELECT count(*)
  FROM (SELECT 1 FROM job WHERE queue = :name AND state = 'QUEUED'
         UNION ALL
        SELECT 1 FROM job WHERE queue = :name AND state = 'READY'
         LIMIT :most) AS few
