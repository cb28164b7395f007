-- Places at hosts that requests go to.

-- name: host_rules
-- The rules of these hosts, and the one of those that have none.
-- postgres
SELECT name, most, rate, per_us, burst FROM limit_rule
 WHERE scope = 'host' AND (name = '*' OR name = ANY(:host::text[]))
-- sqlite
SELECT name, most, rate, per_us, burst FROM limit_rule
 WHERE scope = 'host' AND (name = '*' OR name IN (SELECT value FROM json_each(:host)))

-- name: host_lock
-- postgres
SELECT milepost_lock_hosts(:host::text[])
-- sqlite
-- Nothing to do: there is one writer.

-- name: host_sweep
-- Removes the places of those that do not send any more: these, and those whose lease is over.
-- postgres
DELETE FROM host_place
 WHERE host = ANY(:host::text[]) AND sends
   AND ((job_id, fence) IN (SELECT * FROM unnest(:id::uuid[], :fence::bigint[]))
        OR NOT EXISTS (SELECT 1 FROM job
                        WHERE job.id = host_place.job_id AND job.fence = host_place.fence
                          AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END))
-- sqlite
DELETE FROM host_place
 WHERE host IN (SELECT value FROM json_each(:host)) AND sends
   AND ((job_id, fence) IN (SELECT id, fence FROM {rows:id fence})
        OR NOT EXISTS (SELECT 1 FROM job
                        WHERE job.id = host_place.job_id AND job.fence = host_place.fence
                          AND +job.state = 'RUNNING'))

-- name: host_sending
-- How many requests each host is sent now, and since how many microseconds on average.
-- postgres
SELECT host, count(*), avg(extract(epoch FROM {now} - since) * 1000000)::double precision
  FROM host_place WHERE host = ANY(:host::text[]) AND sends GROUP BY host
-- sqlite
SELECT host, count(*), avg({now} - since)
  FROM host_place WHERE host IN (SELECT value FROM json_each(:host)) AND sends GROUP BY host

-- name: host_waiting
-- Those that wait for a place, the longest first: since how many microseconds, and in how many they ask again.
-- Those that ask now are among them, however late they are.
-- postgres
SELECT host, job_id::text, (extract(epoch FROM {now} - since) * 1000000)::double precision,
       (extract(epoch FROM due_at - {now}) * 1000000)::double precision
  FROM host_place
 WHERE host = ANY(:host::text[]) AND NOT sends
   AND (due_at > {now} - :grace_us::bigint{micros} OR job_id = ANY(:id::uuid[]))
 ORDER BY since
 LIMIT :most
-- sqlite
SELECT host, job_id, {now} - since, due_at - {now}
  FROM host_place
 WHERE host IN (SELECT value FROM json_each(:host)) AND NOT sends
   AND (due_at > {now} - :grace_us OR job_id IN (SELECT value FROM json_each(:id)))
 ORDER BY since
 LIMIT :most

-- name: host_counts
-- How many requests each host is sent now, and how many wait for a place.
-- postgres
SELECT host,
       count(*) FILTER (WHERE sends AND job.state = 'RUNNING' AND job.fence = host_place.fence),
       count(*) FILTER (WHERE NOT sends AND NOT job.state IN {final})
  FROM host_place JOIN job ON job.id = host_place.job_id
 WHERE host = ANY(:host::text[]) GROUP BY host
-- sqlite
SELECT host,
       count(*) FILTER (WHERE sends AND job.state = 'RUNNING' AND job.fence = host_place.fence),
       count(*) FILTER (WHERE NOT sends AND NOT job.state IN {final})
  FROM host_place CROSS JOIN job ON job.id = host_place.job_id
 WHERE host IN (SELECT value FROM json_each(:host)) GROUP BY host

-- name: host_waits
-- At which host a request that runs waits, since how many microseconds; how many are sent there now, and how many
-- have waited for longer.
-- postgres
SELECT place.host, (extract(epoch FROM {now} - place.since) * 1000000)::double precision,
       (SELECT count(*) FROM host_place AS other JOIN job ON job.id = other.job_id
         WHERE other.host = place.host AND other.sends AND job.state = 'RUNNING' AND job.fence = other.fence),
       (SELECT count(*) FROM host_place AS other JOIN job ON job.id = other.job_id
         WHERE other.host = place.host AND NOT other.sends AND other.since < place.since
           AND NOT job.state IN {final})
  FROM host_place AS place JOIN job ON job.id = place.job_id
 WHERE place.job_id = :id AND NOT place.sends AND job.state = 'RUNNING' AND job.fence = place.fence
-- sqlite
SELECT place.host, {now} - place.since,
       (SELECT count(*) FROM host_place AS other CROSS JOIN job ON job.id = other.job_id
         WHERE other.host = place.host AND other.sends AND job.state = 'RUNNING' AND job.fence = other.fence),
       (SELECT count(*) FROM host_place AS other CROSS JOIN job ON job.id = other.job_id
         WHERE other.host = place.host AND NOT other.sends AND other.since < place.since
           AND NOT job.state IN {final})
  FROM host_place AS place CROSS JOIN job ON job.id = place.job_id
 WHERE place.job_id = :id AND NOT place.sends AND job.state = 'RUNNING' AND job.fence = place.fence

-- name: host_put
-- Writes who sends and who waits. An attempt that has lost its lease does not take the place of the next one.
-- postgres
INSERT INTO host_place AS p (job_id, host, fence, sends, since, due_at)
SELECT i.id, i.host, i.fence, i.sends, {now}, {now} + i.due_us{micros}
  FROM unnest(:id::uuid[], :host::text[], :fence::bigint[], :sends::boolean[], :due_us::bigint[])
       AS i (id, host, fence, sends, due_us)
 ORDER BY i.id
ON CONFLICT (job_id) DO UPDATE
  SET host = excluded.host, fence = excluded.fence, sends = excluded.sends, due_at = excluded.due_at,
      since = CASE WHEN p.host = excluded.host AND NOT p.sends AND NOT excluded.sends
                   THEN p.since ELSE excluded.since END
WHERE p.fence <= excluded.fence
-- sqlite
INSERT INTO host_place AS p (job_id, host, fence, sends, since, due_at)
SELECT i.id, i.host, i.fence, i.sends, {now}, {now} + i.due_us
  FROM {rows:id host fence sends due_us} AS i WHERE true
ON CONFLICT (job_id) DO UPDATE
  SET host = excluded.host, fence = excluded.fence, sends = excluded.sends, due_at = excluded.due_at,
      since = CASE WHEN p.host = excluded.host AND NOT p.sends AND NOT excluded.sends
                   THEN p.since ELSE excluded.since END
WHERE p.fence <= excluded.fence

-- name: host_prune
-- Removes what nobody will ask for: places of leases that are over, and those that did not come back.
-- postgres
DELETE FROM host_place
 WHERE job_id IN (SELECT job_id FROM host_place AS old
                   WHERE CASE WHEN sends THEN since ELSE due_at END < {now} - interval '1 minute'
                     AND NOT EXISTS (SELECT 1 FROM job
                                      WHERE job.id = old.job_id AND job.fence = old.fence
                                        AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END)
                   ORDER BY job_id LIMIT :most FOR UPDATE SKIP LOCKED)
RETURNING job_id
-- sqlite
DELETE FROM host_place
 WHERE job_id IN (SELECT job_id FROM host_place AS old
                   WHERE CASE WHEN sends THEN since ELSE due_at END < {now} - 60000000
                     AND NOT EXISTS (SELECT 1 FROM job
                                      WHERE job.id = old.job_id AND job.fence = old.fence
                                        AND +job.state = 'RUNNING')
                   LIMIT :most)
RETURNING job_id
