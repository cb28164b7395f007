-- What limits say now, for those who look: every answer ends at a bound, whatever waits.

-- name: limit_running
-- How many leases live under each rule of jobs, up to `most` each.
-- postgres
SELECT i.name,
       (SELECT count(*)
          FROM (SELECT 1
                  FROM generate_series(0, 15) AS stripe (n)
                 CROSS JOIN LATERAL (
                       SELECT 1 FROM job
                        WHERE worker_id IS NOT NULL AND limit_key IS NOT NULL
                          AND limit_key > to_hex(stripe.n) || i.prefix || '/'
                          AND limit_key < to_hex(stripe.n) || i.prefix || '0'
                        LIMIT :most) AS found
                 LIMIT :most) AS counted)
  FROM unnest(:name::text[], :prefix::text[]) AS i (name, prefix)
-- sqlite
SELECT i.name,
       (SELECT count(*)
          FROM (SELECT 1 FROM job INDEXED BY job_held
                 WHERE state = 'RUNNING' AND substr(limit_key, 2, length(i.prefix) + 1) = i.prefix || '/'
                 LIMIT :most))
  FROM {rows:name prefix} AS i

-- name: limit_waiting
-- How many jobs stand in line under each rule of jobs, up to `most` each: whether they may start or not.
-- postgres
WITH RECURSIVE hop (queue) AS (
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' AND limit_key IS NOT NULL ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT queue FROM job
           WHERE state = 'QUEUED' AND limit_key IS NOT NULL AND queue > hop.queue ORDER BY queue LIMIT 1)
    FROM hop WHERE hop.queue IS NOT NULL
), line AS MATERIALIZED (
  SELECT hop.queue, rank.priority FROM hop CROSS JOIN generate_series(0, 9) AS rank (priority)
   WHERE EXISTS (SELECT 1 FROM job
                  WHERE job.queue = hop.queue AND job.priority = rank.priority
                    AND job.state = 'QUEUED' AND job.limit_key IS NOT NULL)
)
SELECT i.name,
       (SELECT count(*)
          FROM (SELECT 1
                  FROM line CROSS JOIN generate_series(0, 15) AS stripe (n)
                 CROSS JOIN LATERAL (
                       SELECT 1 FROM job
                        WHERE job.queue = line.queue AND job.priority = line.priority AND job.state = 'QUEUED'
                          AND job.limit_key > to_hex(stripe.n) || i.prefix || '/'
                          AND job.limit_key < to_hex(stripe.n) || i.prefix || '0'
                        LIMIT :most) AS found
                 LIMIT :most) AS counted)
  FROM unnest(:name::text[], :prefix::text[]) AS i (name, prefix)
-- sqlite
WITH RECURSIVE hop (queue) AS (
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' AND limit_key IS NOT NULL ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT queue FROM job
           WHERE state = 'QUEUED' AND limit_key IS NOT NULL AND queue > hop.queue ORDER BY queue LIMIT 1)
    FROM hop WHERE hop.queue IS NOT NULL
), rank (priority) AS (
  VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)
), line AS MATERIALIZED (
  SELECT hop.queue AS queue, rank.priority AS priority FROM hop CROSS JOIN rank
   WHERE EXISTS (SELECT 1 FROM job
                  WHERE job.queue = hop.queue AND job.priority = rank.priority
                    AND job.state = 'QUEUED' AND job.limit_key IS NOT NULL)
), stripe (n) AS (
  SELECT value FROM json_each('["0","1","2","3","4","5","6","7","8","9","a","b","c","d","e","f"]')
)
SELECT i.name,
       (SELECT count(*)
          FROM (SELECT 1
                  FROM line CROSS JOIN stripe CROSS JOIN job INDEXED BY job_claim
                 WHERE job.queue = line.queue AND job.priority = line.priority AND job.state = 'QUEUED'
                   AND job.limit_key > stripe.n || i.prefix || '/'
                   AND job.limit_key < stripe.n || i.prefix || '0'
                 LIMIT :most))
  FROM {rows:name prefix} AS i
