-- Errors that are the same one: nobody who fails waits for a group's row.

-- name: error_groups
-- The groups that were seen last. Each fingerprint is one step along the index of failures.
WITH RECURSIVE named (fingerprint, n) AS (
  SELECT min(fingerprint), 1 FROM failure
   WHERE CAST(:fingerprint AS text) IS NULL OR fingerprint = CAST(:fingerprint AS text)
  UNION ALL
  SELECT (SELECT min(fingerprint) FROM failure WHERE fingerprint > named.fingerprint), n + 1
    FROM named
   WHERE named.fingerprint IS NOT NULL AND n < :groups AND CAST(:fingerprint AS text) IS NULL
), seen AS (
  SELECT fingerprint, (SELECT max(at) FROM failure WHERE fingerprint = named.fingerprint) AS last_at
    FROM named
   WHERE fingerprint IS NOT NULL
), picked AS (
  SELECT fingerprint, last_at FROM seen ORDER BY last_at DESC, fingerprint LIMIT :most
)
SELECT picked.fingerprint,
       (SELECT min(at) FROM failure WHERE fingerprint = picked.fingerprint),
       picked.last_at,
       {text:failure.job_id}, failure.fence, failure.error,
       (SELECT kind FROM job WHERE job.id = failure.job_id)
  FROM picked
  JOIN failure ON failure.fingerprint = picked.fingerprint AND failure.at = picked.last_at
              AND failure.job_id = (SELECT job_id FROM failure AS newest
                                     WHERE newest.fingerprint = picked.fingerprint
                                     ORDER BY newest.at DESC LIMIT 1)
 ORDER BY picked.last_at DESC, picked.fingerprint, failure.job_id DESC

-- name: error_begins
-- Fingerprints that begin so, first the one that is just that. The walk is that of error_groups: a range would depend on
-- the order of letters.
WITH RECURSIVE named (fingerprint, n) AS (
  SELECT min(fingerprint), 1 FROM failure
  UNION ALL
  SELECT (SELECT min(fingerprint) FROM failure WHERE fingerprint > named.fingerprint), n + 1
    FROM named
   WHERE named.fingerprint IS NOT NULL AND n < :groups
)
SELECT fingerprint FROM named
 WHERE substr(fingerprint, 1, length(CAST(:beginning AS text))) = CAST(:beginning AS text)
 ORDER BY fingerprint <> CAST(:beginning AS text), fingerprint
 LIMIT :most

-- name: error_counts
-- How often errors came in each of the last 24 hours, 0 is the current one, and before that (NULL). Behind that, how
-- jobs stand now whose last error it is, of the newest :look: failed, going on, and how many were looked at.
-- (BETWEEN, and the fingerprint in the order: so PostgreSQL walks its index, and not all jobs, to the limit.)
-- postgres
SELECT fingerprint,
       CASE WHEN at > {now} - interval '24 hours'
            THEN (date_part('epoch', date_bin('1 hour', {now}, 'epoch') - at) / 3600)::integer END,
       sum(count)::bigint, NULL::bigint, NULL::bigint, NULL::bigint
  FROM (SELECT fingerprint, at, count FROM failure_hour
         WHERE fingerprint = ANY(ARRAY(SELECT unnest(:fingerprint::text[])))
         UNION ALL
        SELECT fingerprint, at, count FROM failure_delta
         WHERE fingerprint = ANY(ARRAY(SELECT unnest(:fingerprint::text[])))) AS counted
 GROUP BY 1, 2
 UNION ALL
SELECT g.fingerprint, NULL, NULL, now.failed, now.going_on, now.looked
  FROM unnest(:fingerprint::text[]) AS g (fingerprint)
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE state = 'FAILED') AS failed,
              count(*) FILTER (WHERE state NOT IN {final}) AS going_on, count(*) AS looked
         FROM (SELECT state FROM job WHERE fingerprint BETWEEN g.fingerprint AND g.fingerprint
                ORDER BY job.fingerprint DESC, job.id DESC LIMIT (SELECT :look::bigint)) AS newest) AS now
-- sqlite
SELECT fingerprint,
       CASE WHEN at > {now} - 86400000000 THEN {now} / 3600000000 - at / 3600000000 END,
       sum(count), NULL, NULL, NULL
  FROM failure_hour
 WHERE fingerprint IN (SELECT value FROM json_each(:fingerprint))
 GROUP BY 1, 2
 UNION ALL
SELECT g.value, NULL, NULL,
       (SELECT count(*) FILTER (WHERE state = 'FAILED')
          FROM (SELECT state FROM job WHERE fingerprint = g.value
                 ORDER BY job.fingerprint DESC, job.id DESC LIMIT :look)),
       (SELECT count(*) FILTER (WHERE state NOT IN {final})
          FROM (SELECT state FROM job WHERE fingerprint = g.value
                 ORDER BY job.fingerprint DESC, job.id DESC LIMIT :look)),
       (SELECT count(*) FROM (SELECT 1 FROM job WHERE fingerprint = g.value LIMIT :look))
  FROM json_each(:fingerprint) AS g

-- name: error_examples
-- The attempts that failed so last.
SELECT {text:job_id}, fence, at, error, fingerprint
  FROM failure
 WHERE fingerprint = :fingerprint
 ORDER BY at DESC, fence DESC
 LIMIT :most

-- name: error_jobs
-- The newest jobs whose last error it is: what do they share?
SELECT kind, kind_version, queue, tenant
  FROM job
 WHERE fingerprint BETWEEN :fingerprint AND :fingerprint
 ORDER BY job.fingerprint DESC, job.id DESC
 LIMIT :look

-- name: error_list
-- The errors that were seen since a time, the last one first, and a chosen one whenever it was; each row says how
-- many there were since then, and in a week. Jobs of each are counted up to :look, along the index.
WITH RECURSIVE named (fingerprint, n) AS (
  SELECT min(fingerprint), 1 FROM failure
  UNION ALL
  SELECT (SELECT min(fingerprint) FROM failure WHERE fingerprint > named.fingerprint), n + 1
    FROM named
   WHERE named.fingerprint IS NOT NULL AND n < :groups
), seen AS (
  SELECT fingerprint, (SELECT max(at) FROM failure WHERE fingerprint = named.fingerprint) AS last_at
    FROM named
   WHERE fingerprint IS NOT NULL
), newest AS (
  SELECT fingerprint, last_at FROM seen
   WHERE last_at > {now} - :span_us{micros}
   ORDER BY last_at DESC, fingerprint
   LIMIT :most
), picked AS (
  SELECT fingerprint, last_at, 1 AS listed FROM newest
   UNION ALL
  SELECT CAST(:chosen AS text), (SELECT max(at) FROM failure WHERE fingerprint = CAST(:chosen AS text)), 0
   WHERE CAST(:chosen AS text) NOT IN (SELECT fingerprint FROM newest)
), counted (since, week) AS (
  SELECT count(CASE WHEN last_at > {now} - :span_us{micros} THEN 1 END),
         count(CASE WHEN last_at > {now} - :week_us{micros} THEN 1 END)
    FROM seen
)
SELECT {now}, counted.since, counted.week, picked.listed, picked.fingerprint,
       (SELECT min(at) FROM failure WHERE fingerprint = picked.fingerprint),
       picked.last_at,
       (SELECT sum(CASE WHEN state = 'FAILED' THEN 1 WHEN state NOT IN {final} THEN :wide ELSE 0 END)
          FROM (SELECT state FROM job WHERE fingerprint BETWEEN picked.fingerprint AND picked.fingerprint
                 ORDER BY job.fingerprint DESC, job.id DESC LIMIT (SELECT CAST(:look AS bigint))) AS now),
       {text:failure.job_id}, failure.fence, failure.error,
       (SELECT kind FROM job WHERE job.id = failure.job_id)
  FROM counted
  LEFT JOIN picked ON true
  LEFT JOIN failure ON failure.fingerprint = picked.fingerprint AND failure.at = picked.last_at
              AND failure.job_id = (SELECT job_id FROM failure AS last
                                     WHERE last.fingerprint = picked.fingerprint
                                     ORDER BY last.at DESC LIMIT 1)
 ORDER BY picked.listed DESC, picked.last_at DESC, picked.fingerprint, failure.job_id DESC

-- name: error_hours
-- How often errors came in each of the last :hours hours, 0 is the current one; none: no row.
-- postgres
SELECT fingerprint, (date_part('epoch', date_bin('1 hour', {now}, 'epoch') - at) / 3600)::integer, sum(count)::bigint
  FROM (SELECT fingerprint, at, count FROM failure_hour
         WHERE fingerprint = ANY(ARRAY(SELECT unnest(:fingerprint::text[])))
         UNION ALL
        SELECT fingerprint, at, count FROM failure_delta
         WHERE fingerprint = ANY(ARRAY(SELECT unnest(:fingerprint::text[])))) AS counted
 WHERE at > {now} - :hours::integer * interval '1 hour'
 GROUP BY 1, 2
HAVING sum(count) > 0
-- sqlite
SELECT fingerprint, {now} / 3600000000 - at / 3600000000, sum(count)
  FROM failure_hour
 WHERE fingerprint IN (SELECT value FROM json_each(:fingerprint)) AND at > {now} - :hours * 3600000000
 GROUP BY 1, 2
HAVING sum(count) > 0

-- name: error_slots
-- How often errors came in each of :slots equal parts of the time up to now, 0 is the current one; none: no row.
-- postgres
SELECT g.fingerprint, back.n, counted.number
  FROM unnest(:fingerprint::text[]) AS g (fingerprint)
 CROSS JOIN generate_series(0, :slots::int - 1) AS back (n)
 CROSS JOIN LATERAL (SELECT count(*) AS number
                       FROM (SELECT 1 FROM failure
                              WHERE failure.fingerprint = g.fingerprint
                                AND failure.at > {now} - (back.n + 1) * :slot_us::bigint{micros}
                                AND failure.at <= {now} - back.n * :slot_us::bigint{micros}
                              LIMIT :look) AS few) AS counted
 WHERE counted.number > 0
-- sqlite
WITH RECURSIVE back (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM back WHERE n < :slots - 1)
SELECT fingerprint, n, number
  FROM (SELECT g.value AS fingerprint, back.n,
               (SELECT count(*) FROM (SELECT 1 FROM failure
                                       WHERE failure.fingerprint = g.value
                                         AND failure.at > {now} - (back.n + 1) * :slot_us
                                         AND failure.at <= {now} - back.n * :slot_us
                                       LIMIT :look)) AS number
          FROM json_each(:fingerprint) AS g CROSS JOIN back)
 WHERE number > 0

-- name: error_closer
-- The attempts that failed so last, with the arguments of their jobs; and, behind them, how many of the newest jobs
-- whose last error it is are alike.
SELECT {text:failed.job_id}, failed.fence, failed.at, failed.error, job.kind, job.state, job.codec,
       CASE WHEN length(job.payload) <= :bytes THEN job.payload END, length(job.payload),
       NULL, NULL, NULL, NULL, NULL
  FROM (SELECT job_id, fence, at, error FROM failure
         WHERE fingerprint = :fingerprint
         ORDER BY at DESC, fence DESC
         LIMIT :most) AS failed
  LEFT JOIN job ON job.id = failed.job_id
 UNION ALL
SELECT NULL, NULL, NULL, NULL, kind, state, NULL, NULL, NULL, kind_version, queue, tenant, again, count(*)
  FROM (SELECT kind, kind_version, queue, tenant, state,
               (SELECT min(1) FROM job AS newer WHERE newer.rerun_of = job.id) AS again
          FROM job
         WHERE fingerprint BETWEEN :fingerprint AND :fingerprint
         ORDER BY job.fingerprint DESC, job.id DESC
         LIMIT :look) AS newest
 GROUP BY kind, kind_version, queue, tenant, state, again
