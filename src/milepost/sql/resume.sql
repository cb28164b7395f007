-- Runs that resume others.

-- name: run_chain
-- A run and the ones it resumes, the oldest first.
WITH RECURSIVE chain (id, resumes, depth) AS (
  SELECT id, resumes, 0 FROM run WHERE id = :id
  UNION ALL
  SELECT run.id, run.resumes, chain.depth + 1 FROM run JOIN chain ON run.id = chain.resumes
)
SELECT {text:id} FROM chain ORDER BY depth DESC

-- name: run_resumed_by
-- The run that goes on with this one. One that was given up before it was filled is none.
SELECT {text:run.id}, run.state
  FROM run
 WHERE run.resumes = :id
   AND (run.state NOT IN {unsuccessful}
        OR EXISTS (SELECT 1 FROM journal
                    WHERE journal.subject_id = run.id AND journal.machine = 'run'
                      AND journal.move = 'seal'))

-- name: run_given_up
-- Whether a run ended, or was told to, before it was filled.
SELECT count(*) FROM journal
 WHERE subject_id = :id AND machine = 'run' AND from_state = 'CREATED'
   AND move IN ('stop', 'fail', 'cancel')

-- name: run_unfinished
-- A page of the jobs that did not succeed and are not in the run yet that resumes this one.
-- postgres
SELECT job.id::text
  FROM job JOIN step ON step.run_id = job.run_id AND step.number = job.step
 WHERE job.run_id = :run_id AND job.state IN {unsuccessful}
   AND step.role NOT IN ('reduce', 'on_success', 'on_failure')
   AND job.id > coalesce(:after::uuid, '00000000-0000-0000-0000-000000000000')
   AND (SELECT count(*) FROM job AS again
         WHERE again.rerun_of = job.id AND again.run_id = :new_id) = 0
 ORDER BY job.id
 LIMIT :most
-- sqlite
SELECT job.id
  FROM job JOIN step ON step.run_id = job.run_id AND step.number = job.step
 WHERE job.run_id = :run_id AND job.state IN {unsuccessful}
   AND step.role NOT IN ('reduce', 'on_success', 'on_failure')
   AND job.id > coalesce(:after, '')
   AND (SELECT count(*) FROM job AS again
         WHERE again.rerun_of = job.id AND again.run_id = :new_id) = 0
 ORDER BY job.id
 LIMIT :most

-- name: step_copy
-- The steps of a resumed run as they were pinned, with their gates closed again.
INSERT INTO step (run_id, opened, {columns:step})
SELECT :new_id, NOT gated OR number = (SELECT min(number) FROM step WHERE run_id = :old_id),
       {columns:step}
  FROM step
 WHERE run_id = :old_id

-- name: step_count_copy
INSERT INTO step_count (run_id, step, slot)
SELECT :new_id, step, slot FROM step_count WHERE run_id = :old_id

-- name: publication_move
-- What the old run took back goes on in the new one: its producers succeeded and do not run again.
UPDATE publication SET run_id = :new_id, withdrawn = false
 WHERE run_id = :old_id AND withdrawn AND published < total
