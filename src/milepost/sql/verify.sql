-- What `milepost verify` compares.

-- name: verify_entries
-- In the order of the primary key, so that it can be read side by side with the rows.
-- postgres
SELECT subject_id::text, seq, move, from_state, to_state, fence, actor, detail
  FROM journal
 WHERE machine = :machine
 ORDER BY subject_id, journal.machine, seq
-- sqlite
SELECT subject_id, seq, move, from_state, to_state, fence, actor, detail
  FROM journal
 WHERE machine = :machine
 ORDER BY subject_id, machine, seq

-- name: verify_job_rows
SELECT {text:id}, version, state, move, fence, errors, losses, polls, releases,
       worker_id, actor, detail
  FROM job
 ORDER BY job.id

-- name: verify_kept
-- What was kept under a fence that its job never had, or of a job that is gone (I2, I15).
SELECT DISTINCT {text:kept.job_id}, kept.what
  FROM (SELECT job_id, fence, 'step' AS what FROM durable_step
         UNION ALL
        SELECT job_id, fence, 'progress' FROM progress
         UNION ALL
        SELECT job_id, fence, 'output' FROM job_output) AS kept
 WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = kept.job_id AND job.fence >= kept.fence)

-- name: verify_messages
-- A subject that ended without its message, and a message whose subject is gone or has not ended (I16).
SELECT 'job', {text:job.id}, 'it ended and has a channel but no message' FROM job
 WHERE job.channel IS NOT NULL AND job.state IN {final}
   AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.machine = 'job' AND o.subject_id = job.id
                      AND o.channel = job.channel AND o.state = job.state)
 UNION ALL
SELECT 'run', {text:run.id}, 'it ended and has a channel but no message' FROM run
 WHERE run.channel IS NOT NULL AND run.state IN {final}
   AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.machine = 'run' AND o.subject_id = run.id
                      AND o.channel = run.channel AND o.state = run.state)
 UNION ALL
SELECT o.machine, {text:o.subject_id}, 'it has a message but did not end so' FROM outbox o
 WHERE NOT CASE o.machine
           WHEN 'job' THEN EXISTS (SELECT 1 FROM job WHERE job.id = o.subject_id
                                      AND job.state = o.state AND job.version >= o.seq)
           ELSE EXISTS (SELECT 1 FROM run WHERE run.id = o.subject_id
                           AND run.state = o.state AND run.version >= o.seq)
             OR EXISTS (SELECT 1 FROM step WHERE step.run_id = o.subject_id AND o.state = 'RUNNING'
                           AND step.gated AND step.opened AND step.channel = o.channel) END
 UNION ALL
SELECT 'run', {text:step.run_id}, 'its gate opened and has a channel but no message' FROM step
 WHERE step.channel IS NOT NULL AND step.gated AND step.opened
   AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.machine = 'run' AND o.subject_id = step.run_id
                      AND o.channel = step.channel AND o.state = 'RUNNING')

-- name: verify_orphans
-- Jobs of a run that is not there (I15).
SELECT {text:job.id}, {text:job.run_id}
  FROM job
 WHERE job.run_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id)

-- name: verify_orphan_batches
-- Batches within a batch that is not there (H-68).
SELECT {text:child.id}, {text:child.parent_id}
  FROM run AS child
 WHERE child.parent_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = child.parent_id)

-- name: verify_poisoned
-- Only a loss alone makes a job poisoned. (A claim that was summed up with older history is unknown.)
SELECT {text:job.id}
  FROM job
  JOIN journal ON journal.subject_id = job.id AND journal.machine = 'job' AND journal.move = 'claim'
   AND journal.fence = job.fence
 WHERE job.state = 'FAILED' AND job.move = 'lose' AND job.cause = 'poisoned'
   AND (journal.detail IS NULL OR journal.detail <> 'alone')
 ORDER BY job.id

-- name: verify_run_rows
SELECT {text:id}, version, state, move, fence, NULL, actor, detail
  FROM run
 ORDER BY run.id

-- name: verify_runs
-- Final runs that still have open jobs, or open batches within them.
SELECT DISTINCT {text:run.id}, run.state
  FROM run JOIN job ON job.run_id = run.id
 WHERE run.state IN {final}
   AND job.state NOT IN {final}
 UNION
SELECT {text:run.id}, run.state
  FROM run JOIN run AS child ON child.parent_id = run.id
 WHERE run.state IN {final}
   AND child.state NOT IN {final}

-- name: verify_steps
-- Steps whose counters are not what their jobs, and the batches among them, say. Finished jobs may have left by retention, so there
-- may be fewer of them than were counted, never more. Both sides are added up, not joined, so that a
-- job that nobody counts shows too.
SELECT {text:run_id}, step, sum(open), sum(has_open), sum(succeeded), sum(has_succeeded),
       sum(failed), sum(has_failed), sum(cancelled), sum(has_cancelled)
  FROM (SELECT run_id, step, open, 0 AS has_open, succeeded, 0 AS has_succeeded,
               failed, 0 AS has_failed, cancelled, 0 AS has_cancelled
          FROM step_count
         UNION ALL
        SELECT run_id, step,
               0, CASE WHEN state IN {final} THEN 0 ELSE 1 END,
               0, CASE state WHEN 'SUCCEEDED' THEN 1 ELSE 0 END,
               0, CASE state WHEN 'FAILED' THEN 1 ELSE 0 END,
               0, CASE state WHEN 'CANCELLED' THEN 1 ELSE 0 END
          FROM job WHERE run_id IS NOT NULL
         UNION ALL
        SELECT parent_id, 0,
               0, CASE WHEN state IN {final} THEN 0 ELSE 1 END,
               0, CASE state WHEN 'SUCCEEDED' THEN 1 ELSE 0 END,
               0, CASE state WHEN 'FAILED' THEN 1 ELSE 0 END,
               0, CASE state WHEN 'CANCELLED' THEN 1 ELSE 0 END
          FROM run WHERE parent_id IS NOT NULL) AS both_sides
 GROUP BY run_id, step
HAVING sum(open) <> sum(has_open) OR sum(succeeded) < sum(has_succeeded)
    OR sum(failed) < sum(has_failed) OR sum(cancelled) < sum(has_cancelled)
 ORDER BY both_sides.run_id, step
