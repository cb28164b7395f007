-- Errors that are the same one, folded where they are read: nobody who fails waits for a group's row.

-- name: error_groups
-- Whatever is counted is counted up to :look, so that an outage does not make its own page slow. (BETWEEN, and
-- the fingerprint in the order: so PostgreSQL walks its index, and not all jobs, to the limit.)
-- The groups that were seen last, and how their jobs stand now. Each fingerprint is one step along the index
-- of failures.
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
       (SELECT count(*) FROM (SELECT 1 FROM failure WHERE fingerprint BETWEEN picked.fingerprint AND picked.fingerprint
                                 ORDER BY failure.fingerprint LIMIT (SELECT CAST(:look AS bigint))) AS counted),
       (SELECT count(*) FILTER (WHERE state = 'FAILED')
          FROM (SELECT state FROM job WHERE fingerprint BETWEEN picked.fingerprint AND picked.fingerprint
                 ORDER BY job.fingerprint DESC, job.id DESC LIMIT (SELECT CAST(:look AS bigint))) AS now),
       (SELECT count(*) FILTER (WHERE state NOT IN {final})
          FROM (SELECT state FROM job WHERE fingerprint BETWEEN picked.fingerprint AND picked.fingerprint
                 ORDER BY job.fingerprint DESC, job.id DESC LIMIT (SELECT CAST(:look AS bigint))) AS now),
       {text:failure.job_id}, failure.fence, failure.error,
       (SELECT kind FROM job WHERE job.id = failure.job_id)
  FROM picked
  JOIN failure ON failure.fingerprint = picked.fingerprint AND failure.at = picked.last_at
              AND failure.job_id = (SELECT job_id FROM failure AS newest
                                     WHERE newest.fingerprint = picked.fingerprint
                                     ORDER BY newest.at DESC LIMIT 1)
 ORDER BY picked.last_at DESC, picked.fingerprint, failure.job_id DESC

-- name: error_hours
-- How often errors came in each of the last 24 hours, 0 is the current one.
-- postgres
SELECT g.fingerprint, back.n,
       (SELECT count(*) FROM (SELECT 1 FROM failure
                               WHERE failure.fingerprint = g.fingerprint
                                 AND failure.at > {now} - (back.n + 1) * interval '1 hour'
                                 AND failure.at <= {now} - back.n * interval '1 hour'
                               LIMIT :look) AS counted)
  FROM unnest(:fingerprint::text[]) AS g (fingerprint)
 CROSS JOIN generate_series(0, 23) AS back (n)
-- sqlite
WITH RECURSIVE back (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM back WHERE n < 23)
SELECT g.value, back.n,
       (SELECT count(*) FROM (SELECT 1 FROM failure
                               WHERE failure.fingerprint = g.value
                                 AND failure.at > {now} - (back.n + 1) * 3600000000
                                 AND failure.at <= {now} - back.n * 3600000000
                               LIMIT :look))
  FROM json_each(:fingerprint) AS g CROSS JOIN back

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
