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
-- A run with the store's clock, and the run that goes on with it.
-- postgres
SELECT {columns:run}, {now},
       (SELECT newer.id::text FROM run AS newer WHERE newer.resumes = run.id ORDER BY newer.id DESC LIMIT 1)
  FROM run
 WHERE id = :id
-- sqlite
SELECT {columns:run}, {now},
       (SELECT newer.id FROM run AS newer WHERE newer.resumes = run.id ORDER BY newer.id DESC LIMIT 1)
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
       {columns:situation}, id IN (SELECT id FROM slowest), id IN (SELECT id FROM nearest)
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
       {columns:situation}, id IN (SELECT id FROM slowest), id IN (SELECT id FROM nearest)
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
  FROM worker ORDER BY CASE state WHEN 'STOPPED' THEN 1 ELSE 0 END, started_at DESC, id LIMIT 1000)
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
  FROM worker ORDER BY CASE state WHEN 'STOPPED' THEN 1 ELSE 0 END, started_at DESC, id LIMIT 1000)
UNION ALL
SELECT * FROM (SELECT 'entry', json_array(seq, move, from_state, to_state, fence, at, actor), detail
  FROM journal WHERE subject_id = :id AND machine = 'run' ORDER BY seq DESC LIMIT 200)
UNION ALL
SELECT * FROM (SELECT 'error', json_array(g.fingerprint, g.step, g.n, g.failed, g.first, g.cause),
        (SELECT failed.error FROM job AS failed WHERE failed.id = g.first)
  FROM (SELECT fingerprint, step, count(*) AS n, sum(state = 'FAILED') AS failed, min(id) AS first, min(cause) AS cause
          FROM (SELECT id, fingerprint, step, state, cause FROM job INDEXED BY job_errored
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

-- name: pipeline_looks
-- Pipelines as a list shows them, with their last runs; what is in quarantine is counted up to :most.
-- postgres
SELECT p.name, p.mark, p.measure, p.target, p.dataset_version, p.queue, p.fresh_us,
       (extract(epoch FROM {now} - coalesce(
         CASE p.measure WHEN 'time' THEN 'epoch'::timestamptz + p.mark{micros}
                        ELSE p.last_run_completed_at END, p.created_at)) * 1000000)::bigint,
       (SELECT count(*) FROM (SELECT 1 FROM quarantine q WHERE q.pipeline_id = p.id AND q.resolved_at IS NULL
                               LIMIT :most) AS counted),
       latest.run_id::text, latest.mode, run.state, run.created_at,
       (SELECT min(next_at) FROM schedule s WHERE s.kind = p.name || '.start' AND NOT s.paused),
       (SELECT coalesce(sum(records), 0) FROM page WHERE page.root_id = latest.root_id AND ordinal >= 0)::bigint
  FROM pipeline p
  LEFT JOIN LATERAL (SELECT run_id, root_id, mode FROM pipeline_run r WHERE r.pipeline_id = p.id
                      ORDER BY r.number DESC LIMIT 1) latest ON true
  LEFT JOIN run ON run.id = latest.run_id
 ORDER BY p.name
-- sqlite
SELECT p.name, p.mark, p.measure, p.target, p.dataset_version, p.queue, p.fresh_us,
       {now} - coalesce(CASE p.measure WHEN 'time' THEN p.mark ELSE p.last_run_completed_at END, p.created_at),
       (SELECT count(*) FROM (SELECT 1 FROM quarantine q WHERE q.pipeline_id = p.id AND q.resolved_at IS NULL
                               LIMIT :most)),
       latest.run_id, latest.mode, run.state, run.created_at,
       (SELECT min(next_at) FROM schedule s WHERE s.kind = p.name || '.start' AND NOT s.paused),
       (SELECT coalesce(sum(records), 0) FROM page WHERE page.root_id = latest.root_id AND ordinal >= 0)
  FROM pipeline p
  LEFT JOIN pipeline_run latest ON latest.pipeline_id = p.id
        AND latest.number = (SELECT max(number) FROM pipeline_run r WHERE r.pipeline_id = p.id)
  LEFT JOIN run ON run.id = latest.run_id
 ORDER BY p.name

-- name: pipeline_look_told
-- What the page of a pipeline tells beside its runs, a section after the other, as `run_look_told` has them.
-- postgres
(SELECT 'pipeline', jsonb_build_array(id, name, mark, measure, target, last_run_id,
               (extract(epoch FROM last_run_completed_at) * 1000000)::bigint, dataset_version, rules_digest, made_with,
               behind)::text, NULL
  FROM pipeline WHERE name = :name)
UNION ALL
(SELECT 'more', jsonb_build_array((extract(epoch FROM {now}) * 1000000)::bigint, fresh_us,
               (extract(epoch FROM created_at) * 1000000)::bigint,
               (extract(epoch FROM {now} - coalesce(CASE measure WHEN 'time' THEN 'epoch'::timestamptz + mark{micros}
                        ELSE last_run_completed_at END, created_at)) * 1000000)::bigint,
               (SELECT count(*) FROM (SELECT 1 FROM quarantine q WHERE q.pipeline_id = pipeline.id
                                         AND q.resolved_at IS NULL LIMIT :most) AS counted),
               (SELECT count(*) FROM (SELECT 1 FROM raw WHERE raw.pipeline_id = pipeline.id AND raw.missing_in IS NOT NULL
                   AND raw.key NOT LIKE '?%' AND NOT EXISTS (SELECT 1 FROM removal_decision AS d
                        WHERE d.pipeline_id = raw.pipeline_id AND d.root_id = raw.missing_in AND d.decision = 'confirmed')
                  LIMIT :most) AS counted))::text, NULL
  FROM pipeline WHERE name = :name)
UNION ALL
(SELECT 'gap', jsonb_build_array(count(*))::text, NULL
  FROM reading JOIN pipeline_run AS p ON p.run_id = reading.root_id
 WHERE reading.pipeline_id = (SELECT id FROM pipeline WHERE name = :name) AND closed_at IS NULL AND covered_by IS NULL
   AND p.mode IN ('full', 'incremental')
   AND NOT EXISTS (SELECT 1 FROM pipeline_run AS live JOIN run ON run.id = live.run_id
                    WHERE live.root_id = reading.root_id AND run.state NOT IN {final}))
UNION ALL
(SELECT 'schedule', jsonb_build_array(name, kind, cron, zone, missed, paused, paused_by, fired, last_job_id,
               (extract(epoch FROM last_at) * 1000000)::bigint, (extract(epoch FROM next_at) * 1000000)::bigint,
               seen_at + :vanished_us{micros} >= {now}, (extract(epoch FROM {now}) * 1000000)::bigint)::text, NULL
  FROM schedule WHERE kind = :name || '.start' ORDER BY schedule.name)
UNION ALL
(SELECT 'worker', jsonb_build_array(id, state, move, host, pid, program, queues, kinds, slots,
               (extract(epoch FROM started_at) * 1000000)::bigint, (extract(epoch FROM heartbeat_at) * 1000000)::bigint,
               (extract(epoch FROM lease_until) * 1000000)::bigint, extract(epoch FROM lease_until - {now}))::text, NULL
  FROM worker ORDER BY CASE state WHEN 'STOPPED' THEN 1 ELSE 0 END, started_at DESC, id LIMIT 1000)
UNION ALL
(SELECT 'rejected', jsonb_build_array(type)::text, reason
  FROM quarantine WHERE pipeline_id = (SELECT id FROM pipeline WHERE name = :name) AND resolved_at IS NULL
 ORDER BY key LIMIT :looked)
UNION ALL
(SELECT 'moved', jsonb_build_array(seq, move, from_mark, to_mark, run_id, actor,
               (extract(epoch FROM at) * 1000000)::bigint)::text, reason
  FROM watermark_entry WHERE pipeline_id = (SELECT id FROM pipeline WHERE name = :name) ORDER BY seq DESC LIMIT 20)
-- sqlite
SELECT * FROM (SELECT 'pipeline', json_array(id, name, mark, measure, target, last_run_id, last_run_completed_at,
               dataset_version, rules_digest, made_with, behind), NULL
  FROM pipeline WHERE name = :name)
UNION ALL
SELECT * FROM (SELECT 'more', json_array({now}, fresh_us, created_at,
               {now} - coalesce(CASE measure WHEN 'time' THEN mark ELSE last_run_completed_at END, created_at),
               (SELECT count(*) FROM (SELECT 1 FROM quarantine q WHERE q.pipeline_id = pipeline.id
                                         AND q.resolved_at IS NULL LIMIT :most)),
               (SELECT count(*) FROM (SELECT 1 FROM raw WHERE raw.pipeline_id = pipeline.id AND raw.missing_in IS NOT NULL
                   AND raw.key NOT LIKE '?%' AND NOT EXISTS (SELECT 1 FROM removal_decision AS d
                        WHERE d.pipeline_id = raw.pipeline_id AND d.root_id = raw.missing_in AND d.decision = 'confirmed')
                  LIMIT :most))), NULL
  FROM pipeline WHERE name = :name)
UNION ALL
SELECT * FROM (SELECT 'gap', json_array(count(*)), NULL
  FROM reading JOIN pipeline_run AS p ON p.run_id = reading.root_id
 WHERE reading.pipeline_id = (SELECT id FROM pipeline WHERE name = :name) AND closed_at IS NULL AND covered_by IS NULL
   AND p.mode IN ('full', 'incremental')
   AND NOT EXISTS (SELECT 1 FROM pipeline_run AS live JOIN run ON run.id = live.run_id
                    WHERE live.root_id = reading.root_id AND run.state NOT IN {final}))
UNION ALL
SELECT * FROM (SELECT 'schedule', json_array(name, kind, cron, zone, missed, paused, paused_by, fired, last_job_id, last_at,
               next_at, seen_at + :vanished_us{micros} >= {now}, {now}), NULL
  FROM schedule WHERE kind = :name || '.start' ORDER BY schedule.name)
UNION ALL
SELECT * FROM (SELECT 'worker', json_array(id, state, move, host, pid, program, queues, kinds, slots, started_at,
               heartbeat_at, lease_until, (lease_until - {now}) / 1000000.0), NULL
  FROM worker ORDER BY CASE state WHEN 'STOPPED' THEN 1 ELSE 0 END, started_at DESC, id LIMIT 1000)
UNION ALL
SELECT * FROM (SELECT 'rejected', json_array(type), reason
  FROM quarantine WHERE pipeline_id = (SELECT id FROM pipeline WHERE name = :name) AND resolved_at IS NULL
 ORDER BY key LIMIT :looked)
UNION ALL
SELECT * FROM (SELECT 'moved', json_array(seq, move, from_mark, to_mark, run_id, actor, at), reason
  FROM watermark_entry WHERE pipeline_id = (SELECT id FROM pipeline WHERE name = :name) ORDER BY seq DESC LIMIT 20)

-- name: pipeline_look_runs
-- The last runs of a pipeline, newest first, with what became of the records of each.
-- postgres
SELECT {columns:run},
       (SELECT jsonb_build_array(p.root_id, p.mode, p.number, p.start_mark, p.end_mark, p.after_mark, p.counted,
               sums.records, sums.fresh, sums.changed, sums.unchanged,
               (SELECT count(*) FROM quarantine q WHERE q.root_id = p.root_id),
               (SELECT count(*) FROM raw r WHERE r.pipeline_id = p.pipeline_id AND r.removed_by = p.root_id))::text
          FROM pipeline_run p
         CROSS JOIN LATERAL (SELECT coalesce(sum(records), 0) AS records, coalesce(sum(fresh), 0) AS fresh,
                                    coalesce(sum(changed), 0) AS changed, coalesce(sum(unchanged), 0) AS unchanged
                               FROM page WHERE page.root_id = p.root_id AND page.ordinal >= 0) sums
         WHERE p.run_id = run.id),
       (SELECT p.plan FROM pipeline_run p WHERE p.run_id = run.id)
  FROM run
 WHERE id = ANY (ARRAY(SELECT run_id FROM pipeline_run
                        WHERE pipeline_id = (SELECT pipeline.id FROM pipeline WHERE name = :name)
                        ORDER BY number DESC LIMIT :runs))
 ORDER BY (SELECT p.number FROM pipeline_run p WHERE p.run_id = run.id) DESC
-- sqlite
SELECT {columns:run},
       (SELECT json_array(p.root_id, p.mode, p.number, p.start_mark, p.end_mark, p.after_mark, p.counted,
               (SELECT coalesce(sum(records), 0) FROM page WHERE page.root_id = p.root_id AND page.ordinal >= 0),
               (SELECT coalesce(sum(fresh), 0) FROM page WHERE page.root_id = p.root_id AND page.ordinal >= 0),
               (SELECT coalesce(sum(changed), 0) FROM page WHERE page.root_id = p.root_id AND page.ordinal >= 0),
               (SELECT coalesce(sum(unchanged), 0) FROM page WHERE page.root_id = p.root_id AND page.ordinal >= 0),
               (SELECT count(*) FROM quarantine q WHERE q.root_id = p.root_id),
               (SELECT count(*) FROM raw r WHERE r.pipeline_id = p.pipeline_id AND r.removed_by = p.root_id))
          FROM pipeline_run p WHERE p.run_id = run.id),
       (SELECT p.plan FROM pipeline_run p WHERE p.run_id = run.id)
  FROM run
 WHERE id IN (SELECT run_id FROM pipeline_run
               WHERE pipeline_id = (SELECT pipeline.id FROM pipeline WHERE name = :name)
               ORDER BY number DESC LIMIT :runs)
 ORDER BY (SELECT p.number FROM pipeline_run p WHERE p.run_id = run.id) DESC

-- name: pipeline_look_cells
-- The partitions of these runs, so many of each; an error only of those that are not read.
-- postgres
-- By state, as their index has them: where a run has most of the jobs, a join would read all jobs. A partition
-- that comes later has a later id.
WITH asked AS MATERIALIZED (
  SELECT run_id, number FROM step WHERE run_id = ANY (ARRAY(SELECT unnest(:id::uuid[]))) AND role = 'partition'
), mine AS MATERIALIZED (
  SELECT found.id
    FROM asked
   CROSS JOIN unnest(ARRAY['CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED', 'RETRYING', 'SUCCEEDED', 'FAILED',
                           'CANCELLED']) AS w (state)
   CROSS JOIN LATERAL (SELECT id FROM job WHERE run_id = asked.run_id AND step = asked.number
                          AND job.state = w.state AND job.state <> 'RUNNING'
                        ORDER BY job.state, job.id LIMIT (SELECT :most::bigint)) found
   UNION ALL
  SELECT job.id FROM job JOIN asked ON asked.run_id = job.run_id AND asked.number = job.step
   WHERE job.state = 'RUNNING'
)
SELECT job.run_id::text, job.ordinal, job.id::text, job.state, job.cause,
       CASE WHEN job.state <> 'SUCCEEDED' THEN job.error END, coalesce(progress.saves, 0),
       coalesce(progress.records, 0), progress.fraction, reading.low, reading.high, reading.closed_at IS NOT NULL,
       job.due_at, progress.position
  FROM job
  LEFT JOIN progress ON progress.job_id = job.id
  LEFT JOIN pipeline_run p ON p.run_id = job.run_id
  LEFT JOIN reading ON reading.root_id = p.root_id AND reading.ordinal = job.ordinal
 WHERE job.id = ANY (ARRAY(SELECT id FROM mine)) AND job.ordinal < :most
 ORDER BY job.run_id, job.ordinal
-- sqlite
SELECT job.run_id, job.ordinal, job.id, job.state, job.cause,
       CASE WHEN job.state <> 'SUCCEEDED' THEN job.error END, coalesce(progress.saves, 0),
       coalesce(progress.records, 0), progress.fraction, reading.low, reading.high, reading.closed_at IS NOT NULL,
       job.due_at, progress.position
  FROM step
  JOIN job ON job.run_id = step.run_id AND job.step = step.number
  LEFT JOIN progress ON progress.job_id = job.id
  LEFT JOIN pipeline_run p ON p.run_id = job.run_id
  LEFT JOIN reading ON reading.root_id = p.root_id AND reading.ordinal = job.ordinal
 WHERE step.run_id IN (SELECT value FROM json_each(:id)) AND step.role = 'partition' AND job.ordinal < :most
 ORDER BY job.run_id, job.ordinal
