-- How limits stand, for commands and pages: each query reads a bounded number of rows, whatever waits.

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
                          AND limit_key >= to_hex(stripe.n) || i.prefix || '/'
                          AND limit_key < to_hex(stripe.n) || i.prefix || '0'
                        ORDER BY limit_key
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
-- How many jobs stand in line under each rule of jobs, up to `most` each: whether they may start or not. Of those that
-- wait for a broker, 10,000 are looked at.
-- postgres
WITH RECURSIVE hop (queue) AS (
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' AND coalesce(limit_key, '') <> '' ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT queue FROM job
           WHERE state = 'QUEUED' AND coalesce(limit_key, '') <> '' AND queue > hop.queue ORDER BY queue LIMIT 1)
    FROM hop WHERE hop.queue IS NOT NULL
), line AS MATERIALIZED (
  SELECT hop.queue, rank.priority FROM hop CROSS JOIN generate_series(0, 9) AS rank (priority)
   WHERE (SELECT true FROM job
          WHERE job.queue = hop.queue AND job.priority = rank.priority
            AND job.state = 'QUEUED' AND coalesce(job.limit_key, '') <> '' LIMIT 1)
), ready AS MATERIALIZED (
  SELECT near.limit_key FROM (SELECT limit_key FROM job WHERE state = 'READY' LIMIT 10000) AS near
   WHERE near.limit_key IS NOT NULL
)
SELECT i.name,
       (SELECT count(*)
          FROM (SELECT 1 FROM ready WHERE substr(ready.limit_key, 2, length(i.prefix) + 1) = i.prefix || '/'
                 UNION ALL
                SELECT 1
                  FROM line CROSS JOIN generate_series(0, 15) AS stripe (n)
                 CROSS JOIN LATERAL (
                       SELECT 1 FROM job
                        WHERE job.queue = line.queue AND job.priority = line.priority AND job.state = 'QUEUED'
                          AND job.limit_key >= to_hex(stripe.n) || i.prefix || '/'
                          AND job.limit_key < to_hex(stripe.n) || i.prefix || '0'
                        ORDER BY job.limit_key
                        LIMIT :most) AS found
                 LIMIT :most) AS counted)
  FROM unnest(:name::text[], :prefix::text[]) AS i (name, prefix)
-- sqlite
WITH RECURSIVE hop (queue) AS (
  SELECT (SELECT queue FROM job WHERE state = 'QUEUED' AND coalesce(limit_key, '') <> '' ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT queue FROM job
           WHERE state = 'QUEUED' AND coalesce(limit_key, '') <> '' AND queue > hop.queue ORDER BY queue LIMIT 1)
    FROM hop WHERE hop.queue IS NOT NULL
), rank (priority) AS (
  VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)
), line AS MATERIALIZED (
  SELECT hop.queue AS queue, rank.priority AS priority FROM hop CROSS JOIN rank
   WHERE EXISTS (SELECT 1 FROM job
                  WHERE job.queue = hop.queue AND job.priority = rank.priority
                    AND job.state = 'QUEUED' AND coalesce(job.limit_key, '') <> '')
), stripe (n) AS (
  SELECT value FROM json_each('["0","1","2","3","4","5","6","7","8","9","a","b","c","d","e","f"]')
), ready AS MATERIALIZED (
  SELECT near.limit_key FROM (SELECT limit_key FROM job INDEXED BY job_ready WHERE state = 'READY' LIMIT 10000) AS near
   WHERE near.limit_key IS NOT NULL
)
SELECT i.name,
       (SELECT count(*)
          FROM (SELECT 1 FROM ready WHERE substr(ready.limit_key, 2, length(i.prefix) + 1) = i.prefix || '/'
                 UNION ALL
                SELECT 1
                  FROM line CROSS JOIN stripe CROSS JOIN job INDEXED BY job_claim
                 WHERE job.queue = line.queue AND job.priority = line.priority AND job.state = 'QUEUED'
                   AND job.limit_key >= stripe.n || i.prefix || '/'
                   AND job.limit_key < stripe.n || i.prefix || '0'
                 LIMIT :most))
  FROM {rows:name prefix} AS i

-- name: limit_holders
-- The first leases under a key: the worker of each, and for how many microseconds; and how many there are, up to `most`.
-- postgres
SELECT {text:job.id}, job.tenant, job.worker_id,
       (extract(epoch FROM {now} - (SELECT max(at) FROM journal
                                     WHERE subject_id = job.id AND machine = 'job' AND fence = job.fence
                                       AND move = 'claim')) * 1000000)::bigint,
       (SELECT count(*) FROM (SELECT 1 FROM job AS other
                               WHERE other.limit_key = :key AND other.worker_id IS NOT NULL LIMIT :most) AS counted)
  FROM job WHERE job.limit_key = :key AND job.worker_id IS NOT NULL
 LIMIT :shown
-- sqlite
SELECT {text:job.id}, job.tenant, job.worker_id,
       {now} - (SELECT max(at) FROM journal
                 WHERE subject_id = job.id AND machine = 'job' AND fence = job.fence AND move = 'claim'),
       (SELECT count(*) FROM (SELECT 1 FROM job AS other INDEXED BY job_held
                               WHERE other.state = 'RUNNING' AND other.limit_key = :key LIMIT :most))
  FROM job INDEXED BY job_held WHERE job.state = 'RUNNING' AND job.limit_key = :key
 LIMIT :shown

-- name: queue_holders
-- The same of a queue.
-- postgres
SELECT {text:job.id}, job.tenant, job.worker_id,
       (extract(epoch FROM {now} - (SELECT max(at) FROM journal
                                     WHERE subject_id = job.id AND machine = 'job' AND fence = job.fence
                                       AND move = 'claim')) * 1000000)::bigint,
       (SELECT count(*) FROM (SELECT 1 FROM job AS other
                               WHERE other.state = 'RUNNING' AND other.queue = :queue LIMIT :most) AS counted)
  FROM job WHERE job.state = 'RUNNING' AND job.queue = :queue
 LIMIT :shown
-- sqlite
SELECT {text:job.id}, job.tenant, job.worker_id,
       {now} - (SELECT max(at) FROM journal
                 WHERE subject_id = job.id AND machine = 'job' AND fence = job.fence AND move = 'claim'),
       (SELECT count(*) FROM (SELECT 1 FROM job AS other INDEXED BY job_held
                               WHERE other.state = 'RUNNING' AND other.queue = :queue LIMIT :most))
  FROM job INDEXED BY job_held WHERE job.state = 'RUNNING' AND job.queue = :queue
 LIMIT :shown

-- name: limit_before
-- How many jobs of its key stand in line before a job, up to `most`, and what they take from the bucket; before one
-- that is in no line, all that are. Of those that wait for a broker, the nearest 10,000 are looked at.
-- postgres
SELECT count(*), coalesce(sum(coalesce(units, 1)), 0)
  FROM (SELECT found.units
          FROM (SELECT queue, limit_key, state,
                       CASE WHEN state IN {lined_up} THEN priority ELSE 0 END AS priority,
                       CASE WHEN state IN {lined_up} THEN queued_seq ELSE 9223372036854775807 END AS seq
                  FROM job WHERE id = :id::uuid) AS me
         CROSS JOIN LATERAL generate_series(me.priority, 9) AS rank (priority)
         CROSS JOIN LATERAL (
               (SELECT units FROM job
                 WHERE job.queue = me.queue AND job.priority = rank.priority AND job.state = 'QUEUED'
                   AND job.limit_key = me.limit_key
                   AND job.queued_seq < CASE WHEN rank.priority > me.priority THEN 9223372036854775807 ELSE me.seq END
                 ORDER BY job.limit_key, job.queued_seq
                 LIMIT :most)
                UNION ALL
                SELECT near.units
                  FROM (SELECT job.units, job.limit_key FROM job
                         WHERE job.queue = me.queue AND job.priority = me.priority AND job.state = 'READY'
                           AND job.queued_seq < me.seq
                         ORDER BY job.queued_seq DESC
                         LIMIT 10000) AS near
                 WHERE near.limit_key = me.limit_key AND me.state = 'READY' AND rank.priority = me.priority) AS found
         LIMIT :most) AS before
-- sqlite
-- Those of one instant stand in the order of their creation.
WITH rank (priority) AS (
  VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)
), me AS MATERIALIZED (
  SELECT queue, limit_key, state, rowid AS number,
         CASE WHEN state IN {lined_up} THEN priority ELSE 0 END AS priority,
         CASE WHEN state IN {lined_up} THEN queued_seq ELSE 9223372036854775807 END AS seq
    FROM job WHERE id = :id
)
SELECT count(*), coalesce(sum(coalesce(units, 1)), 0)
  FROM (SELECT job.units
          FROM me CROSS JOIN rank CROSS JOIN job INDEXED BY job_claim
         WHERE rank.priority >= me.priority
           AND job.queue = me.queue AND job.priority = rank.priority AND job.state = 'QUEUED'
           AND job.limit_key = me.limit_key
           AND job.queued_seq < CASE WHEN rank.priority > me.priority THEN 9223372036854775807 ELSE me.seq END
         UNION ALL
        SELECT job.units
          FROM me CROSS JOIN job INDEXED BY job_claim
         WHERE job.queue = me.queue AND job.priority = me.priority AND job.state = 'QUEUED'
           AND job.limit_key = me.limit_key AND job.queued_seq = me.seq AND job.rowid < me.number
         UNION ALL
        SELECT near.units
          FROM me CROSS JOIN (SELECT job.units, job.limit_key, job.queued_seq, job.rowid AS number
                                FROM job INDEXED BY job_ready
                               WHERE job.queue = (SELECT queue FROM me) AND job.state = 'READY'
                                 AND job.priority = (SELECT priority FROM me)
                                 AND job.queued_seq <= (SELECT seq FROM me)
                               ORDER BY job.queued_seq DESC
                               LIMIT 10000) AS near
         WHERE me.state = 'READY' AND near.limit_key = me.limit_key
           AND (near.queued_seq < me.seq OR near.number < me.number)
         LIMIT :most)

-- name: queue_before
-- How many jobs of its queue stand in line before a job, up to `most`.
-- postgres
SELECT count(*)
  FROM (SELECT 1
          FROM (SELECT queue, priority::integer, queued_seq AS seq FROM job WHERE id = :id::uuid) AS me
         CROSS JOIN LATERAL generate_series(me.priority, 9) AS rank (priority)
         CROSS JOIN LATERAL (
               (SELECT 1 FROM job
                 WHERE job.queue = me.queue AND job.priority = rank.priority AND job.state = 'QUEUED'
                   AND job.limit_key IS NULL
                   AND job.queued_seq < CASE WHEN rank.priority > me.priority THEN 9223372036854775807 ELSE me.seq END
                 ORDER BY job.limit_key, job.queued_seq
                 LIMIT :most)
                UNION ALL
               (SELECT 1 FROM job
                 WHERE job.queue = me.queue AND job.priority = rank.priority AND job.state = 'QUEUED'
                   AND coalesce(job.limit_key, '') <> ''
                   AND job.queued_seq < CASE WHEN rank.priority > me.priority THEN 9223372036854775807 ELSE me.seq END
                 ORDER BY job.queued_seq
                 LIMIT :most)) AS found
         LIMIT :most) AS before
-- sqlite
WITH rank (priority) AS (
  VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)
), me AS MATERIALIZED (
  SELECT queue, priority, queued_seq AS seq, rowid AS number FROM job WHERE id = :id
)
SELECT count(*)
  FROM (SELECT 1
          FROM me CROSS JOIN rank CROSS JOIN job INDEXED BY job_claim
         WHERE rank.priority >= me.priority
           AND job.queue = me.queue AND job.priority = rank.priority AND job.state = 'QUEUED'
           AND job.limit_key IS NULL
           AND job.queued_seq < CASE WHEN rank.priority > me.priority THEN 9223372036854775807 ELSE me.seq END
         UNION ALL
        SELECT 1
          FROM me CROSS JOIN rank CROSS JOIN job INDEXED BY job_front
         WHERE rank.priority >= me.priority
           AND job.queue = me.queue AND job.priority = rank.priority AND job.state = 'QUEUED'
           AND coalesce(job.limit_key, '') <> ''
           AND job.queued_seq < CASE WHEN rank.priority > me.priority THEN 9223372036854775807 ELSE me.seq END
         UNION ALL
        SELECT 1
          FROM me CROSS JOIN job INDEXED BY job_claim
         WHERE job.queue = me.queue AND job.priority = me.priority AND job.state = 'QUEUED'
           AND job.limit_key IS NULL AND job.queued_seq = me.seq AND job.rowid < me.number
         UNION ALL
        SELECT 1
          FROM me CROSS JOIN job INDEXED BY job_front
         WHERE job.queue = me.queue AND job.priority = me.priority AND job.state = 'QUEUED'
           AND coalesce(job.limit_key, '') <> '' AND job.queued_seq = me.seq AND job.rowid < me.number
         LIMIT :most)

-- name: limit_ahead
-- By how many microseconds the buckets of a key and of a queue are ahead of now.
-- postgres
SELECT scope, (extract(epoch FROM free_at - {now}) * 1000000)::bigint FROM bucket
 WHERE (scope = 'job' AND key = :key) OR (scope = 'queue' AND key = :queue)
-- sqlite
SELECT scope, free_at - {now} FROM bucket
 WHERE (scope = 'job' AND key = :key) OR (scope = 'queue' AND key = :queue)

-- name: limit_turn
-- The job of an ordered key that is next: one between two attempts, else the first in line, or one that was before it
-- and is still to be handed to a broker.
-- postgres
SELECT * FROM (
  (SELECT {text:id}, tenant, kind, kind_version, state, (extract(epoch FROM due_at - {now}) * 1000000)::bigint
     FROM job
    WHERE limit_key = :key AND fence > 0 AND state IN {sleeping}
    LIMIT 1)
   UNION ALL
  (SELECT {text:id}, tenant, kind, kind_version, state, NULL::bigint
     FROM ((SELECT * FROM job
             WHERE queue = :queue AND priority = :priority AND state = 'READY' AND limit_key = :key
             ORDER BY queued_seq
             LIMIT 1)
            UNION ALL
           (SELECT * FROM job
             WHERE queue = :queue AND priority = :priority AND state = 'QUEUED' AND limit_key = :key
             ORDER BY limit_key, queued_seq
             LIMIT 1)) AS first
    ORDER BY queued_seq
    LIMIT 1)) AS next
 LIMIT 1
-- sqlite
SELECT * FROM (
  SELECT * FROM (SELECT {text:id}, tenant, kind, kind_version, state, due_at - {now}
                   FROM job INDEXED BY job_turn
                  WHERE limit_key = :key AND fence > 0 AND state IN {sleeping}
                  LIMIT 1)
   UNION ALL
  SELECT * FROM (SELECT {text:id}, tenant, kind, kind_version, state, NULL
                   FROM job
                  WHERE rowid IN (SELECT rowid FROM (SELECT rowid FROM job INDEXED BY job_ready
                                                      WHERE queue = :queue AND priority = :priority
                                                        AND state = 'READY' AND limit_key = :key
                                                      ORDER BY queued_seq
                                                      LIMIT 1)
                                   UNION ALL
                                  SELECT rowid FROM (SELECT rowid FROM job INDEXED BY job_claim
                                                      WHERE queue = :queue AND priority = :priority
                                                        AND state = 'QUEUED' AND limit_key = :key
                                                      ORDER BY limit_key, queued_seq
                                                      LIMIT 1))
                  ORDER BY queued_seq, rowid
                  LIMIT 1))
 LIMIT 1

-- name: queue_first
-- The first job in a queue's line that is under a limit: of its key, or of the queue.
-- postgres
WITH limited AS MATERIALIZED (
  SELECT EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'queue' AND name = :queue) AS limited
)
SELECT {text:found.id}, limited.limited
  FROM limited CROSS JOIN generate_series(0, 9) AS rank (priority)
 CROSS JOIN LATERAL (
       (SELECT id FROM job
         WHERE job.queue = :queue AND job.priority = rank.priority AND job.state = 'QUEUED'
           AND coalesce(job.limit_key, '') <> ''
         ORDER BY queued_seq LIMIT 1)
        UNION ALL
       (SELECT id FROM job
         WHERE limited.limited AND job.queue = :queue AND job.priority = rank.priority AND job.state = 'QUEUED'
           AND job.limit_key IS NULL
         ORDER BY limit_key, queued_seq LIMIT 1)) AS found
 ORDER BY rank.priority DESC LIMIT 1
-- sqlite
WITH rank (priority) AS (
  VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)
), limited AS MATERIALIZED (
  SELECT EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'queue' AND name = :queue) AS limited
), first AS MATERIALIZED (
  SELECT rank.priority,
         coalesce((SELECT rowid FROM job INDEXED BY job_front
                    WHERE job.queue = :queue AND job.priority = rank.priority AND job.state = 'QUEUED'
                      AND coalesce(job.limit_key, '') <> ''
                    ORDER BY queued_seq LIMIT 1),
                  (SELECT rowid FROM job INDEXED BY job_claim
                    WHERE limited.limited AND job.queue = :queue AND job.priority = rank.priority
                      AND job.state = 'QUEUED' AND job.limit_key IS NULL
                    ORDER BY limit_key, queued_seq LIMIT 1)) AS number
    FROM limited CROSS JOIN rank
)
SELECT job.id, limited.limited
  FROM limited CROSS JOIN first CROSS JOIN job ON job.rowid = first.number
 ORDER BY first.priority DESC LIMIT 1

-- name: limit_disputed
-- Rules that were declared in two ways lately: how often that changed, and how many workers live since before.
SELECT rule.scope, rule.name, rule.declared, rule.declared_before, lately.changes,
       (SELECT count(*) FROM worker
         WHERE worker.state <> 'STOPPED' AND worker.lease_until > {now} AND worker.started_at < lately.at)
  FROM (SELECT scope, name, count(*) AS changes, max(at) AS at
          FROM (SELECT scope, name, at FROM limit_change
                 WHERE at > {now} - :age_us{micros} AND reason = 'declared' AND actor IS NULL AND before IS NOT NULL
                 ORDER BY n DESC LIMIT :most) AS newest
         GROUP BY scope, name) AS lately
  JOIN limit_rule AS rule ON rule.scope = lately.scope AND rule.name = lately.name
 WHERE rule.declared <> rule.declared_before
 ORDER BY rule.scope, rule.name

-- name: limit_unseen
-- Rules that the program of no worker that lives has declared.
SELECT scope, name FROM limit_rule
 WHERE declared IS NOT NULL
   AND declared_at < (SELECT min(started_at) FROM worker WHERE state <> 'STOPPED' AND lease_until > {now})
                     - :grace_us{micros}
 ORDER BY scope, name

-- name: limit_exceeded
-- Keys and queues with more live leases than their rule allows.
SELECT rule.scope, rule.name, counted.key, counted.live, CASE WHEN rule.ordered THEN 1 ELSE rule.most END
  FROM (SELECT job.limit_key AS key, {rule} AS name, 'job' AS scope, count(*) AS live
          FROM job WHERE job.state = 'RUNNING' AND job.limit_key IS NOT NULL
         GROUP BY job.limit_key
         UNION ALL
        SELECT NULL, job.queue, 'queue', count(*)
          FROM job WHERE job.state = 'RUNNING'
         GROUP BY job.queue) AS counted
  JOIN limit_rule AS rule ON rule.scope = counted.scope AND rule.name = counted.name
 WHERE counted.live > CASE WHEN rule.ordered THEN 1 ELSE rule.most END
 ORDER BY rule.scope, rule.name, counted.key
 LIMIT :most

-- name: limit_heads_of_kinds
-- The first jobs in line of ordered keys: how many are of each kind, one of them, its key, and how many wait behind.
SELECT queue, kind, kind_version, count(*), min({text:id}), min(key), sum(behind)
  FROM (SELECT job.id, job.queue, job.kind, job.kind_version, job.limit_key AS key,
               row_number() OVER (PARTITION BY job.limit_key ORDER BY job.priority DESC, job.queued_seq) AS place,
               count(*) OVER (PARTITION BY job.limit_key) - 1 AS behind
          FROM job JOIN limit_rule AS rule ON rule.scope = 'job' AND rule.ordered AND rule.name = {rule}
         WHERE job.state = 'QUEUED' AND job.limit_key IS NOT NULL) AS line
 WHERE place = 1 AND behind > 0
 GROUP BY queue, kind, kind_version
 ORDER BY queue, kind, kind_version
