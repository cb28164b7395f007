-- Queues.

-- name: queue_list
SELECT name, transport, paused, paused_at, paused_by FROM queue ORDER BY name

-- name: queue_pause
INSERT INTO queue (name, paused, paused_at, paused_by) VALUES (:name, :paused, {now}, :actor)
ON CONFLICT (name) DO UPDATE
   SET paused = excluded.paused, paused_at = excluded.paused_at, paused_by = excluded.paused_by

-- name: queue_waiting
-- The queues that have something to claim, by hopping from one to the next along the index.
WITH RECURSIVE hop (name) AS (
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' AND queue > hop.name ORDER BY queue LIMIT 1)
    FROM hop WHERE hop.name IS NOT NULL
)
SELECT name FROM hop WHERE name IS NOT NULL

-- name: queue_bound
INSERT INTO queue_bound (name, max_waiting) VALUES (:name, :max_waiting)
ON CONFLICT (name) DO UPDATE SET max_waiting = excluded.max_waiting

-- name: queue_bounds
SELECT name, max_waiting FROM queue_bound

-- name: queue_depth
-- Counts up to so many: a long queue costs no more than a full one.
SELECT count(*) FROM (SELECT 1 FROM job WHERE queue = :name AND state = 'QUEUED' LIMIT :most) AS few
