-- Queues.

-- name: queue_list
SELECT name, transport, paused, paused_at, paused_by, reason FROM queue ORDER BY name

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

-- name: queue_oldest
-- How long the first job of each queue has been in it, whichever its priority: microseconds. Numbers
-- are taken on the way in, so the first of each priority is its oldest; its last entry says since when.
-- postgres
WITH RECURSIVE hop (name) AS (
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' AND queue > hop.name ORDER BY queue LIMIT 1)
    FROM hop WHERE hop.name IS NOT NULL
)
SELECT hop.name, (extract(epoch FROM {now} - min(journal.at)) * 1000000)::bigint
  FROM hop CROSS JOIN generate_series(0, 9) AS rank (priority)
 CROSS JOIN LATERAL (
       SELECT id, version FROM job
        WHERE queue = hop.name AND job.priority = rank.priority AND state = 'QUEUED'
        ORDER BY queued_seq LIMIT 1) AS first
  JOIN journal ON journal.subject_id = first.id AND machine = 'job' AND seq = first.version
 GROUP BY hop.name
-- sqlite
WITH RECURSIVE hop (name) AS (
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' AND queue > hop.name ORDER BY queue LIMIT 1)
    FROM hop WHERE hop.name IS NOT NULL
), rank (priority) AS (
  SELECT 0 UNION ALL SELECT priority + 1 FROM rank WHERE priority < 9
)
SELECT name, max(waited) FROM (
  SELECT hop.name, (SELECT {now} - journal.at
                      FROM job CROSS JOIN journal
                     WHERE queue = hop.name AND job.priority = rank.priority
                       AND job.state = 'QUEUED' AND journal.subject_id = job.id
                       AND machine = 'job' AND seq = job.version
                     ORDER BY queued_seq LIMIT 1) AS waited
    FROM hop CROSS JOIN rank WHERE hop.name IS NOT NULL)
 WHERE waited IS NOT NULL
 GROUP BY name

-- name: queue_bound
INSERT INTO queue_bound (name, max_waiting) VALUES (:name, :max_waiting)
ON CONFLICT (name) DO UPDATE SET max_waiting = excluded.max_waiting

-- name: queue_bounds
SELECT name, max_waiting FROM queue_bound WHERE max_waiting IS NOT NULL

-- name: queue_depth
-- Counts up to so many: a long queue costs no more than a full one.
SELECT count(*) FROM (SELECT 1 FROM job WHERE queue = :name AND state = 'QUEUED' LIMIT :most) AS few
