-- Runs as they advance, stop and end.

-- name: run_lock
-- postgres
-- Not FOR UPDATE: a publication's foreign key shares the run's key, and two settlers that both
-- share it could never both have it whole.
-- Runs in a tree of batches are left out: `run_lock_tree` has them, level by level.
SELECT id::text, state, version, current_step, ending FROM run
 WHERE id = ANY (ARRAY(SELECT unnest(:id::uuid[]))) AND depth IS NULL
 ORDER BY run.id
   FOR NO KEY UPDATE
-- sqlite: each
-- There is one writer.
SELECT id, state, version, current_step, ending FROM run WHERE id = :id AND depth IS NULL

-- name: run_lock_tree
-- Runs in trees of batches, those of one transaction from the deepest up (H-68).
-- postgres
SELECT id::text, state, version, current_step, ending, parent_id::text, depth FROM run
 WHERE id = ANY (ARRAY(SELECT unnest(:id::uuid[]))) AND depth IS NOT NULL
 ORDER BY run.depth DESC, run.id
   FOR NO KEY UPDATE
-- sqlite: each
SELECT id, state, version, current_step, ending, parent_id, depth FROM run
 WHERE id = :id AND depth IS NOT NULL

-- name: run_depths
-- postgres
SELECT id::text, depth FROM run WHERE id = ANY(:id::uuid[]) AND depth IS NOT NULL
-- sqlite
SELECT id, depth FROM run WHERE id IN (SELECT value FROM json_each(:id)) AND depth IS NOT NULL

-- name: run_children_active
-- Batches within a batch that go on.
SELECT {text:id} FROM run
 WHERE parent_id = :id AND state IN {active}
 ORDER BY run.id
 LIMIT :most

-- name: run_peek
-- postgres
SELECT id::text, state, version, current_step, ending FROM run
 WHERE id = ANY (ARRAY(SELECT unnest(:id::uuid[])))
-- sqlite: each
SELECT id, state, version, current_step, ending FROM run WHERE id = :id

-- name: run_move
-- Why a run was cancelled stays with it: the move that ends it may come later than the request.
-- postgres
UPDATE run
   SET state = t.state, move = t.move, version = run.version + 1, actor = :actor, detail = t.detail,
       cause = coalesce(t.cause, run.cause), ending = coalesce(t.ending, run.ending),
       error = coalesce(t.error, run.error),
       current_step = coalesce(t.current_step, run.current_step),
       phase = CASE WHEN t.move = 'stop' THEN run.phase ELSE t.phase END,
       watermark_after = coalesce('epoch'::timestamptz + t.watermark{micros}, run.watermark_after),
       started_at = coalesce(started_at, CASE WHEN t.move = 'begin' THEN {now} END),
       report = CASE WHEN t.move = 'finish'
                     THEN (SELECT job.result FROM job JOIN step ON step.run_id = job.run_id
                                                               AND step.number = job.step
                            WHERE job.run_id = run.id AND step.role = 'reduce'
                              AND job.state = 'SUCCEEDED') ELSE report END,
       finished_at = CASE WHEN t.state IN {final} THEN {now} END
  FROM unnest(:id::uuid[], :version::integer[], :state::text[], :move::text[], :cause::text[],
              :ending::text[], :current_step::integer[], :phase::text[], :watermark::bigint[],
              :detail::text[], :error::text[])
       AS t (id, version, state, move, cause, ending, current_step, phase, watermark, detail, error)
 WHERE run.id = t.id AND run.version = t.version
RETURNING run.id::text
-- sqlite: each
UPDATE run
   SET state = :state, move = :move, version = version + 1, actor = :actor, detail = :detail,
       cause = coalesce(:cause, cause), ending = coalesce(:ending, ending),
       error = coalesce(:error, error),
       current_step = coalesce(:current_step, current_step),
       phase = CASE WHEN :move = 'stop' THEN phase ELSE :phase END,
       watermark_after = coalesce(:watermark, watermark_after),
       started_at = coalesce(started_at, CASE WHEN :move = 'begin' THEN {now} END),
       report = CASE WHEN :move = 'finish'
                     THEN (SELECT job.result FROM job JOIN step ON step.run_id = job.run_id
                                                               AND step.number = job.step
                            WHERE job.run_id = run.id AND step.role = 'reduce'
                              AND job.state = 'SUCCEEDED') ELSE report END,
       finished_at = CASE WHEN :state IN {final} THEN {now} END
 WHERE id = :id AND version = :version
RETURNING id

-- name: run_succeeded_before
-- What succeeded, step by step, in the runs that a run resumes.
-- postgres
WITH RECURSIVE chain (id, resumes) AS (
  SELECT id, resumes FROM run WHERE id = :id
  UNION ALL
  SELECT run.id, run.resumes FROM run JOIN chain ON run.id = chain.resumes
)
SELECT c.step, sum(c.succeeded)
  FROM step_count c
 WHERE c.run_id = ANY (ARRAY(SELECT id FROM chain WHERE id <> :id))
 GROUP BY c.step
-- sqlite
WITH RECURSIVE chain (id, resumes) AS (
  SELECT id, resumes FROM run WHERE id = :id
  UNION ALL
  SELECT run.id, run.resumes FROM run JOIN chain ON run.id = chain.resumes
)
SELECT c.step, sum(c.succeeded)
  FROM step_count c JOIN chain ON chain.id = c.run_id
 WHERE c.run_id <> :id
 GROUP BY c.step

-- name: job_cancel_stopped
-- Cancels what has not begun in a run that is stopping, a batch at a time.
-- postgres
-- By the run's index, state by state: half of a large run may be over.
WITH open AS MATERIALIZED (
  SELECT found.id, found.fence
    FROM (SELECT number FROM step WHERE run_id = :run_id OFFSET 0) step
   CROSS JOIN unnest('{CREATED, GATED, WAITING, READY, QUEUED, RETRYING}'::text[]) AS s (state)
   CROSS JOIN LATERAL (
         SELECT id, fence FROM job
          WHERE job.run_id = :run_id AND job.step = step.number
            AND job.state BETWEEN s.state AND s.state AND job.state <> 'RUNNING'
          ORDER BY job.state, job.id
          LIMIT (SELECT :most::bigint)
            FOR UPDATE SKIP LOCKED) found
   LIMIT :most
)
UPDATE job
   SET state = 'CANCELLED', move = 'cancel', version = version + 1, actor = :actor,
       detail = 'the run is stopping', finished_at = {now}
  FROM open
 WHERE job.id = open.id AND open.fence % 1 = 0
RETURNING job.id::text, job.run_id::text, job.step
-- sqlite
UPDATE job
   SET state = 'CANCELLED', move = 'cancel', version = version + 1, queued_seq = queued_seq, actor = :actor,
       detail = 'the run is stopping', finished_at = {now}
 WHERE rowid IN (
         SELECT rowid FROM job
          WHERE run_id = :run_id
            AND state IN {unclaimed}
          LIMIT :most)
RETURNING id, run_id, step

-- name: run_late
-- Runs that missed their deadline and are not stopping yet.
SELECT {text:id}, depth FROM run
 WHERE state IN {active} AND deadline_at <= {now}
 ORDER BY deadline_at
 LIMIT :most

-- name: run_forgotten
-- Held runs that were neither sealed nor added to in time (H-107); how long that is was fixed when
-- they were created.
SELECT {text:id} FROM run
 WHERE state = 'CREATED' AND due_at <= {now}
   AND NOT EXISTS (SELECT 1 FROM step
                    WHERE step.run_id = run.id
                      AND step.filled_at > {now} - (run.due_at - run.created_at))
 ORDER BY due_at
 LIMIT :most

-- name: run_is_forgotten
-- Looks again at a held run whose row is locked by now: it may have been added to meanwhile.
SELECT version FROM run
 WHERE id = :id AND state = 'CREATED' AND due_at <= {now}
   AND NOT EXISTS (SELECT 1 FROM step
                    WHERE step.run_id = run.id
                      AND step.filled_at > {now} - (run.due_at - run.created_at))
