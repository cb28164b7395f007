-- Steps of a run: their gates, and the jobs that pass them.

-- name: step_create
-- postgres
INSERT INTO step (run_id, opened, {columns:step})
SELECT :run_id, t.* FROM unnest(:opened::boolean[], {arrays:step}) AS t (opened, {columns:step})
-- sqlite: each
INSERT INTO step (run_id, opened, {columns:step}) VALUES (:run_id, :opened, {columns:step :})

-- name: step_count_create
-- postgres
-- One for jobs that are created, in slot -1, and as many for ends as the step says.
INSERT INTO step_count (run_id, step, slot)
SELECT :run_id, t.number, slot
  FROM unnest(:number::integer[], :slots::integer[]) AS t (number, slots)
 CROSS JOIN generate_series(-1, t.slots - 1) AS slot
-- sqlite: each
INSERT INTO step_count (run_id, step, slot)
WITH RECURSIVE numbered (slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM numbered WHERE slot + 1 < :slots)
SELECT :run_id, :number, slot FROM numbered

-- name: step_count_children
-- A slot for the batches within a batch: they are items of its first step (H-68).
INSERT INTO step_count (run_id, step, slot) VALUES (:run_id, 0, -2)

-- name: step_filled
-- Says that a held run was added to now.
UPDATE step SET filled_at = {now} WHERE run_id = :run_id AND number = :number

-- name: step_get
SELECT {columns:pinned s.}, s.deadline_us, s.start_within_us, r.tenant, r.trace
  FROM step s JOIN run r ON r.id = s.run_id
 WHERE s.run_id = :run_id AND s.number = :number

-- name: step_open
-- postgres
UPDATE step SET opened = true
  FROM unnest(:run_id::uuid[], :number::integer[]) AS t (run_id, number)
 WHERE step.run_id = t.run_id AND step.number = t.number
-- sqlite: each
UPDATE step SET opened = true WHERE run_id = :run_id AND number = :number

-- name: job_open
-- Lets jobs of opened steps through their gate; a polling step's jobs sleep first. The flip of the
-- step's row is the truth, this is its follow-up.
-- postgres
WITH gated AS MATERIALIZED (
  SELECT found.id, found.fence, step.poll_us
    FROM unnest(:run_id::uuid[]) AS t (run_id)
   CROSS JOIN LATERAL (
         SELECT * FROM step WHERE step.run_id = t.run_id AND step.opened OFFSET 0) step
   CROSS JOIN LATERAL (
         SELECT id, fence FROM job
          WHERE job.run_id = step.run_id AND job.step = step.number
            AND job.state BETWEEN 'GATED' AND 'GATED'
          ORDER BY job.state
          LIMIT (SELECT :most::bigint)
            FOR UPDATE SKIP LOCKED) found
   LIMIT :most
), ordered AS MATERIALIZED (
  SELECT * FROM gated ORDER BY id
)
UPDATE job
   SET state = CASE WHEN ordered.poll_us IS NOT NULL THEN 'WAITING'
                    WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'open', version = version + 1, actor = :actor, detail = NULL,
       due_at = {now} + ordered.poll_us{micros}, delay_us = ordered.poll_us,
       queued_seq = nextval('queued_seq')
  FROM ordered
 WHERE job.id = ordered.id AND ordered.fence % 1 = 0
RETURNING job.id::text
-- sqlite
UPDATE job
   SET state = CASE WHEN (SELECT poll_us FROM step WHERE step.run_id = job.run_id AND number = job.step)
                         IS NOT NULL THEN 'WAITING'
                    WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'open', version = version + 1, actor = :actor, detail = NULL,
       due_at = {now} + (SELECT poll_us FROM step WHERE step.run_id = job.run_id AND number = job.step),
       queued_seq = {number:job.limit_key job.queue job.priority}
 WHERE rowid IN (
         SELECT job.rowid
           FROM json_each(:run_id) AS t CROSS JOIN step CROSS JOIN job INDEXED BY job_run
          WHERE step.run_id = t.value AND step.opened
            AND job.run_id = step.run_id AND job.step = step.number AND job.state = 'GATED'
          LIMIT :most)
RETURNING id

-- name: job_release_held
-- Submits the jobs of sealed runs; where one goes depends on its step, then on whether its time has come.
-- postgres
WITH held AS MATERIALIZED (
  SELECT found.id, found.fence, step.gated AND NOT step.opened AS gated, step.poll_us
    FROM unnest(:run_id::uuid[]) AS t (run_id)
   CROSS JOIN LATERAL (SELECT * FROM step WHERE step.run_id = t.run_id OFFSET 0) step
   CROSS JOIN LATERAL (
         SELECT id, fence FROM job
          WHERE job.run_id = step.run_id AND job.step = step.number
            AND job.state BETWEEN 'CREATED' AND 'CREATED'
          ORDER BY job.state
          LIMIT (SELECT :most::bigint)
            FOR UPDATE SKIP LOCKED) found
   LIMIT :most
), ordered AS MATERIALIZED (
  SELECT * FROM held ORDER BY id
)
UPDATE job
   SET state = CASE WHEN ordered.gated THEN 'GATED'
                    WHEN ordered.poll_us IS NOT NULL OR job.due_at > {now} THEN 'WAITING'
                    WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'submit', version = version + 1, actor = :actor, detail = NULL,
       due_at = coalesce({now} + ordered.poll_us{micros}, job.due_at), delay_us = ordered.poll_us,
       queued_seq = nextval('queued_seq')
  FROM ordered
 WHERE job.id = ordered.id AND ordered.fence % 1 = 0
RETURNING job.id::text
-- sqlite
UPDATE job
   SET state = (SELECT CASE WHEN gated AND NOT opened THEN 'GATED'
                            WHEN poll_us IS NOT NULL OR job.due_at > {now} THEN 'WAITING'
                            WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                            THEN 'READY' ELSE 'QUEUED' END
                  FROM step WHERE step.run_id = job.run_id AND number = job.step),
       move = 'submit', version = version + 1, actor = :actor, detail = NULL,
       due_at = coalesce({now} + (SELECT poll_us FROM step
                                   WHERE step.run_id = job.run_id AND number = job.step), due_at),
       queued_seq = {number:job.limit_key job.queue job.priority}
 WHERE rowid IN (SELECT job.rowid
                   FROM json_each(:run_id) AS t CROSS JOIN step CROSS JOIN job INDEXED BY job_run
                  WHERE step.run_id = t.value AND job.run_id = step.run_id
                    AND job.step = step.number AND job.state = 'CREATED'
                  LIMIT :most)
RETURNING id

-- name: run_steps
-- How each step of runs stands, counted now: a new statement sees what others have committed. With
-- it the first step that outputs are for whose producer has ended and that are not jobs yet.
-- postgres
SELECT s.run_id::text, s.number, s.name, s.role, s.gated, s.opened, s.fail_fast, s.tolerance,
       (SELECT min(p.first_step) FROM publication p
         WHERE p.run_id = s.run_id AND p.published < p.total AND NOT p.withdrawn),
       coalesce(c.open, 0), coalesce(c.succeeded, 0), coalesce(c.failed, 0), coalesce(c.cancelled, 0)
  FROM step s
  LEFT JOIN LATERAL (
       SELECT sum(open) AS open, sum(succeeded) AS succeeded, sum(failed) AS failed,
              sum(cancelled) AS cancelled
         FROM step_count WHERE run_id = s.run_id AND step = s.number) c ON true
 WHERE s.run_id = ANY (ARRAY(SELECT unnest(:id::uuid[])))
 ORDER BY s.run_id, s.number
-- sqlite: each
SELECT s.run_id, s.number, s.name, s.role, s.gated, s.opened, s.fail_fast, s.tolerance,
       (SELECT min(p.first_step) FROM publication p
         WHERE p.run_id = s.run_id AND p.published < p.total AND NOT p.withdrawn),
       coalesce(sum(c.open), 0), coalesce(sum(c.succeeded), 0), coalesce(sum(c.failed), 0),
       coalesce(sum(c.cancelled), 0)
  FROM step s LEFT JOIN step_count c ON c.run_id = s.run_id AND c.step = s.number
 WHERE s.run_id = :id
 GROUP BY s.number, s.name, s.role, s.gated, s.opened, s.fail_fast, s.tolerance
 ORDER BY s.number
