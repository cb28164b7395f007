-- Runs as pages show them: bounded reads, however many jobs a run has.

-- name: run_stands
-- How each step of runs stands. What has ended is taken from the counters; open jobs are counted by state,
-- each state up to :most, and those that are left are QUEUED.
-- postgres
-- For the planner: all running jobs are few, and an index has them.
WITH busy AS MATERIALIZED (
  SELECT run_id, step, count(*) AS n FROM job
   WHERE state = 'RUNNING' AND run_id = ANY (ARRAY(SELECT unnest(:id::uuid[])))
   GROUP BY run_id, step
)
SELECT s.run_id::text, s.number, s.name, s.role, s.gated, s.opened, s.fail_fast, s.tolerance,
       coalesce(c.open, 0)::bigint, coalesce(c.succeeded, 0)::bigint, coalesce(c.failed, 0)::bigint,
       coalesce(c.cancelled, 0)::bigint,
       coalesce((SELECT n FROM busy WHERE busy.run_id = s.run_id AND busy.step = s.number), 0),
       CASE WHEN s.number = 0
            THEN (SELECT count(*) FROM run AS child WHERE child.parent_id = s.run_id
                     AND child.state NOT IN {final} AND child.started_at IS NOT NULL) ELSE 0 END,
       (SELECT count(*) FROM (SELECT 1 FROM job WHERE run_id = s.run_id AND step = s.number
                                 AND state = 'RETRYING' LIMIT :most) AS counted),
       (SELECT count(*) FROM (SELECT 1 FROM job WHERE run_id = s.run_id AND step = s.number
                                 AND state = 'READY' LIMIT :most) AS counted),
       (SELECT count(*) FROM (SELECT 1 FROM job WHERE run_id = s.run_id AND step = s.number
                                 AND state = 'WAITING' LIMIT :most) AS counted),
       (SELECT count(*) FROM (SELECT 1 FROM job WHERE run_id = s.run_id AND step = s.number
                                 AND state = 'GATED' LIMIT :most) AS counted),
       (SELECT count(*) FROM (SELECT 1 FROM job WHERE run_id = s.run_id AND step = s.number
                                 AND state = 'CREATED' LIMIT :most) AS counted)
  FROM step s
  LEFT JOIN LATERAL (
       SELECT sum(open) AS open, sum(succeeded) AS succeeded, sum(failed) AS failed,
              sum(cancelled) AS cancelled
         FROM step_count WHERE run_id = s.run_id AND step = s.number) c ON true
 WHERE s.run_id = ANY (ARRAY(SELECT unnest(:id::uuid[])))
 ORDER BY s.run_id, s.number
-- sqlite: each
SELECT s.run_id, s.number, s.name, s.role, s.gated, s.opened, s.fail_fast, s.tolerance,
       coalesce(sum(c.open), 0), coalesce(sum(c.succeeded), 0), coalesce(sum(c.failed), 0),
       coalesce(sum(c.cancelled), 0),
       (SELECT count(*) FROM job WHERE run_id = s.run_id AND step = s.number AND state = 'RUNNING'),
       CASE WHEN s.number = 0
            THEN (SELECT count(*) FROM run AS child WHERE child.parent_id = s.run_id
                     AND child.state NOT IN {final} AND child.started_at IS NOT NULL) ELSE 0 END,
       (SELECT count(*) FROM (SELECT 1 FROM job WHERE run_id = s.run_id AND step = s.number
                                 AND state = 'RETRYING' LIMIT :most)),
       (SELECT count(*) FROM (SELECT 1 FROM job WHERE run_id = s.run_id AND step = s.number
                                 AND state = 'READY' LIMIT :most)),
       (SELECT count(*) FROM (SELECT 1 FROM job WHERE run_id = s.run_id AND step = s.number
                                 AND state = 'WAITING' LIMIT :most)),
       (SELECT count(*) FROM (SELECT 1 FROM job WHERE run_id = s.run_id AND step = s.number
                                 AND state = 'GATED' LIMIT :most)),
       (SELECT count(*) FROM (SELECT 1 FROM job WHERE run_id = s.run_id AND step = s.number
                                 AND state = 'CREATED' LIMIT :most))
  FROM step s LEFT JOIN step_count c ON c.run_id = s.run_id AND c.step = s.number
 WHERE s.run_id = :id
 GROUP BY s.number, s.name, s.role, s.gated, s.opened, s.fail_fast, s.tolerance
 ORDER BY s.number

-- name: run_look
-- A run with the store's clock, the run that goes on with it, and the queues that are paused.
-- postgres
SELECT {columns:run}, {now},
       (SELECT newer.id::text FROM run AS newer WHERE newer.resumes = run.id ORDER BY newer.id DESC LIMIT 1),
       (SELECT coalesce(jsonb_agg(name), '[]')::text FROM queue WHERE paused)
  FROM run
 WHERE id = :id
-- sqlite
SELECT {columns:run}, {now},
       (SELECT newer.id FROM run AS newer WHERE newer.resumes = run.id ORDER BY newer.id DESC LIMIT 1),
       (SELECT json_group_array(name) FROM queue WHERE paused)
  FROM run
 WHERE id = :id

-- name: run_look_jobs
-- The open job that a run's next move waits for first, and, flagged, the jobs that run longest. Of each step
-- and state the first is one step along an index; a job that runs is not stuck, so it comes last. Arguments
-- that are long are left out.
-- postgres
WITH slowest AS MATERIALIZED (
  SELECT id, step FROM job WHERE state = 'RUNNING' AND run_id = :id ORDER BY started_at, id
   LIMIT (SELECT :slowest::bigint)
), nearest AS MATERIALIZED (
  SELECT found.id FROM (
    SELECT s.number, first.id, false AS busy
      FROM step s
     CROSS JOIN unnest(ARRAY['QUEUED', 'RETRYING', 'WAITING', 'READY', 'CREATED']) AS w (state)
     CROSS JOIN LATERAL (SELECT id FROM job WHERE run_id = s.run_id AND step = s.number AND job.state = w.state
                            AND job.state <> 'RUNNING' ORDER BY job.state, job.id LIMIT 1) first
     WHERE s.run_id = :id
    UNION ALL
    SELECT step, id, true FROM slowest) AS found
   ORDER BY number, busy, id
   LIMIT 1
)
SELECT {columns:job | CASE WHEN octet_length(payload) <= 4000 THEN payload END AS payload | NULL AS result},
       id IN (SELECT id FROM slowest), id IN (SELECT id FROM nearest)
  FROM job
 WHERE id = ANY (ARRAY(SELECT id FROM slowest UNION SELECT id FROM nearest))
 ORDER BY job.started_at, job.id
-- sqlite
WITH slowest AS MATERIALIZED (
  SELECT id, step FROM job WHERE run_id = :id AND step IN (SELECT number FROM step WHERE run_id = :id)
     AND state = 'RUNNING' ORDER BY started_at, id LIMIT :slowest
), nearest AS MATERIALIZED (
  SELECT id FROM (
    SELECT s.number AS number, (SELECT min(id) FROM job WHERE run_id = :id AND step = s.number AND state = w.value) AS id,
           false AS busy
      FROM step s CROSS JOIN json_each('["QUEUED","RETRYING","WAITING","READY","CREATED"]') AS w
     WHERE s.run_id = :id
    UNION ALL
    SELECT step, id, true FROM slowest)
   WHERE id IS NOT NULL
   ORDER BY number, busy, id
   LIMIT 1
)
SELECT {columns:job | CASE WHEN length(payload) <= 4000 THEN payload END AS payload | NULL AS result},
       id IN (SELECT id FROM slowest), id IN (SELECT id FROM nearest)
  FROM job
 WHERE id IN (SELECT id FROM slowest UNION SELECT id FROM nearest)
 ORDER BY started_at, id

-- name: run_look_told
-- Everything else that a page tells of a run, a section after the other: what it is, a list of values, and a
-- text that may be sealed. Jobs that ended are placed on the time line only :with_ends.
-- postgres
(SELECT 'worker', jsonb_build_array(id, state, move, host, pid, program, queues, kinds, slots,
               (extract(epoch FROM started_at) * 1000000)::bigint, (extract(epoch FROM heartbeat_at) * 1000000)::bigint,
               (extract(epoch FROM lease_until) * 1000000)::bigint, extract(epoch FROM lease_until - {now}))::text, NULL
  FROM worker ORDER BY started_at DESC, id LIMIT 1000)
UNION ALL
(SELECT 'entry', jsonb_build_array(seq, move, from_state, to_state, fence,
               (extract(epoch FROM at) * 1000000)::bigint, actor)::text, detail
  FROM journal WHERE subject_id = :id AND machine = 'run' ORDER BY seq DESC LIMIT 200)
UNION ALL
(SELECT 'error', jsonb_build_array(g.fingerprint, g.step, g.n, g.failed, g.first, g.cause)::text,
        (SELECT failed.error FROM job AS failed WHERE failed.id = g.first::uuid)
  FROM (SELECT fingerprint, step, count(*) AS n, count(*) FILTER (WHERE state = 'FAILED') AS failed,
               min(id::text) AS first, min(cause) AS cause
          FROM (SELECT id, fingerprint, step, state, cause FROM job
                 WHERE run_id = :id AND (errors + losses > 0 OR state = 'FAILED') LIMIT :most) AS few
         WHERE fingerprint IS NOT NULL OR state = 'FAILED'
         GROUP BY fingerprint, step) AS g
 ORDER BY g.first LIMIT 50)
UNION ALL
(SELECT 'ended', jsonb_build_array(step, floor(extract(epoch FROM finished_at - :since::timestamptz) / :width), count(*))::text, NULL
  FROM job
 WHERE run_id = :id AND state IN {final} AND finished_at IS NOT NULL AND :with_ends
 GROUP BY step, floor(extract(epoch FROM finished_at - :since::timestamptz) / :width))
UNION ALL
(SELECT 'child', jsonb_build_array(id, kind, state, ordinal)::text, NULL
  FROM run WHERE parent_id = :id ORDER BY run.ordinal, run.id LIMIT 50)
-- sqlite
SELECT * FROM (SELECT 'worker', json_array(id, state, move, host, pid, program, queues, kinds, slots, started_at,
               heartbeat_at, lease_until, (lease_until - {now}) / 1000000.0), NULL
  FROM worker ORDER BY started_at DESC, id LIMIT 1000)
UNION ALL
SELECT * FROM (SELECT 'entry', json_array(seq, move, from_state, to_state, fence, at, actor), detail
  FROM journal WHERE subject_id = :id AND machine = 'run' ORDER BY seq DESC LIMIT 200)
UNION ALL
SELECT * FROM (SELECT 'error', json_array(g.fingerprint, g.step, g.n, g.failed, g.first, g.cause),
        (SELECT failed.error FROM job AS failed WHERE failed.id = g.first)
  FROM (SELECT fingerprint, step, count(*) AS n, sum(state = 'FAILED') AS failed, min(id) AS first, min(cause) AS cause
          FROM (SELECT id, fingerprint, step, state, cause FROM job
                 WHERE run_id = :id AND (errors + losses > 0 OR state = 'FAILED') LIMIT :most)
         WHERE fingerprint IS NOT NULL OR state = 'FAILED'
         GROUP BY fingerprint, step) AS g
 ORDER BY g.first LIMIT 50)
UNION ALL
SELECT * FROM (SELECT 'ended', json_array(step, CAST((finished_at - :since) / 1000000.0 / :width AS INTEGER), count(*)), NULL
  FROM job
 WHERE :with_ends AND run_id = :id AND step IN (SELECT number FROM step WHERE run_id = :id) AND state IN {final}
   AND finished_at IS NOT NULL
 GROUP BY step, CAST((finished_at - :since) / 1000000.0 / :width AS INTEGER))
UNION ALL
SELECT * FROM (SELECT 'child', json_array(id, kind, state, ordinal), NULL
  FROM run WHERE parent_id = :id ORDER BY ordinal, id LIMIT 50)
