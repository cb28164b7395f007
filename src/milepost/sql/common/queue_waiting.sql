-- The queues that have something to claim, by hopping from one to the next along the index.
WITH RECURSIVE hop (name) AS (
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' AND queue > hop.name ORDER BY queue LIMIT 1)
    FROM hop WHERE hop.name IS NOT NULL
)
SELECT name FROM hop WHERE name IS NOT NULL
