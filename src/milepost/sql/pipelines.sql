-- Pipelines, their runs and partitions.

-- name: pipeline_create
INSERT INTO pipeline (name, measure, target, created_at)
VALUES (:name, :measure, :target, {now})
ON CONFLICT (name) DO NOTHING

-- name: pipeline_lock
-- Starts of one pipeline wait for each other here: each sees what the one before has made.
UPDATE pipeline
   SET target = :target, queue = :queue, channel = :channel, fresh_us = :fresh_us
 WHERE name = :name
RETURNING id, mark, measure

-- name: pipeline_known
-- Whether anything says that this pipeline has once been read to its end (H-77).
SELECT EXISTS (SELECT 1 FROM watermark_entry WHERE pipeline_id = :pipeline_id)
    OR EXISTS (SELECT 1 FROM pipeline_run AS p JOIN run ON run.id = p.run_id
                WHERE p.pipeline_id = :pipeline_id AND run.state = 'SUCCEEDED'
                  AND p.mode IN ('full', 'incremental'))

-- name: pipeline_get
SELECT id, name, mark, measure, target, {text:last_run_id}, last_run_completed_at, dataset_version,
       rules_digest, made_with, behind
  FROM pipeline
 WHERE name = :name

-- name: pipeline_list
SELECT id, name, mark, measure, target, {text:last_run_id}, last_run_completed_at, dataset_version,
       rules_digest, made_with, behind
  FROM pipeline
 ORDER BY name

-- name: pipeline_made
-- What the records of a pipeline are made with by now, and how many are not.
UPDATE pipeline
   SET rules_digest = :rules_digest, made_with = :made_with, behind = :behind
 WHERE id = :pipeline_id

-- name: pipeline_number
-- The number of a pipeline's next run. The caller holds the pipeline: others wait, and see the run.
UPDATE pipeline SET runs = runs + 1 WHERE id = :pipeline_id RETURNING runs

-- name: pipeline_run_add
INSERT INTO pipeline_run (run_id, root_id, pipeline_id, mode, before_mark, start_mark, end_mark,
                          overlap, margin, number)
VALUES (:run_id, :root_id, :pipeline_id, :mode, :before_mark, :start_mark, :end_mark, :overlap,
        :margin, :number)

-- name: pipeline_run_after
UPDATE pipeline_run SET after_mark = :after_mark WHERE run_id = :run_id

-- name: pipeline_run_fix
-- Fixes the end of the window and the rules, once: the second caller reads what is fixed (H-69).
UPDATE pipeline_run
   SET end_mark = coalesce(end_mark, :end_mark), rules = :rules, rules_digest = :rules_digest
 WHERE run_id = :run_id AND rules_digest IS NULL

-- name: pipeline_run_get
SELECT {text:p.run_id}, {text:p.root_id}, p.pipeline_id, pipeline.name, p.mode, p.before_mark,
       p.start_mark, p.end_mark, p.after_mark, p.overlap, p.margin, p.counted, p.calls,
       p.planned_at, p.plan, p.rules_digest, p.rules, pipeline.measure, r.mode,
       coalesce(r.number, p.number)
  FROM pipeline_run AS p JOIN pipeline ON pipeline.id = p.pipeline_id
  LEFT JOIN pipeline_run AS r ON r.run_id = p.root_id
 WHERE p.run_id = :run_id

-- name: pipeline_run_link
-- A run that works on what another one has read: the same window, the same rules.
INSERT INTO pipeline_run (run_id, root_id, pipeline_id, mode, before_mark, start_mark, end_mark,
                          overlap, margin, counted, calls, plan, planned_at, rules, rules_digest,
                          number)
SELECT :run_id, :root_id, pipeline_id, :mode, before_mark, start_mark, end_mark, overlap, margin,
       counted, calls, plan, CASE WHEN :mode = 'replay' THEN {now} ELSE planned_at END, rules,
       rules_digest, :number
  FROM pipeline_run
 WHERE run_id = :old_id

-- name: pipeline_run_list
SELECT {text:p.run_id}, {text:p.root_id}, p.mode, run.state, run.cause, p.start_mark, p.end_mark,
       p.after_mark, run.created_at, run.finished_at
  FROM pipeline_run AS p JOIN run ON run.id = p.run_id
 WHERE p.pipeline_id = :pipeline_id
 ORDER BY p.number DESC
 LIMIT :most

-- name: pipeline_run_ruled
-- The last run whose rules are known: one that failed before has none.
SELECT {text:run_id} FROM pipeline_run
 WHERE pipeline_id = :pipeline_id AND rules_digest IS NOT NULL
 ORDER BY number DESC
 LIMIT 1

-- name: pipeline_run_planned
UPDATE pipeline_run
   SET counted = :counted, calls = :calls, plan = :plan, planned_at = {now}
 WHERE run_id = :run_id AND planned_at IS NULL
RETURNING planned_at

-- name: run_records
-- The records that a root has read, as its pages say, and what became of them: as `Counts` has them.
SELECT coalesce(sum(records), 0), coalesce(sum(fresh), 0), coalesce(sum(changed), 0),
       coalesce(sum(unchanged), 0),
       (SELECT count(*) FROM quarantine WHERE root_id = :root_id),
       (SELECT count(*) FROM raw WHERE pipeline_id = :pipeline_id AND removed_by = :root_id),
       count(*), coalesce(sum(pending), 0),
       (SELECT coalesce(sum(duplicates), 0) FROM progress JOIN job ON job.id = progress.job_id
         WHERE job.run_id = :run_id AND (job.state = 'RUNNING' OR job.state <> 'RUNNING')),
       (SELECT coalesce(sum(completions), 0) FROM progress JOIN job ON job.id = progress.job_id
         WHERE job.run_id = :run_id AND (job.state = 'RUNNING' OR job.state <> 'RUNNING'))
  FROM page
 WHERE root_id = :root_id AND ordinal >= 0

-- name: partition_cursor
-- postgres
SELECT coalesce(progress.saves, 0), progress.position, coalesce(progress.done, false)
  FROM job LEFT JOIN progress ON progress.job_id = job.id
 WHERE job.id = :id AND job.fence = :fence AND job.state = 'RUNNING'
-- sqlite
SELECT coalesce(progress.saves, 0), progress.position, coalesce(progress.done, 0)
  FROM job LEFT JOIN progress ON progress.job_id = job.id
 WHERE job.id = :id AND job.fence = :fence AND job.state = 'RUNNING'

-- name: partition_end
-- A partition that is handed over has nothing left to read. No row back: it had ended before.
UPDATE progress SET done = true, updated_at = {now}
 WHERE job_id = :id AND NOT done
RETURNING saves

-- name: partition_list
SELECT job.ordinal, {text:job.id}, job.state, job.cause, job.error, coalesce(progress.saves, 0),
       coalesce(progress.records, 0), progress.fraction, reading.low, reading.high,
       reading.closed_at, job.payload, coalesce(progress.duplicates, 0),
       coalesce(progress.completions, 0)
  FROM job JOIN step ON step.run_id = job.run_id AND step.number = job.step
  LEFT JOIN progress ON progress.job_id = job.id
  LEFT JOIN reading ON reading.root_id = :root_id AND reading.ordinal = job.ordinal
 WHERE job.run_id = :run_id AND step.role = 'partition'
   AND (job.state = 'RUNNING' OR job.state <> 'RUNNING')
 ORDER BY job.ordinal

-- name: progress_carry
-- A partition that is created again goes on where the one before it came to.
-- postgres
INSERT INTO progress_carried (run_id) VALUES (:run_id)
-- sqlite
INSERT INTO progress (job_id, fence, fraction, next_offset, records, position, saves, done,
                      created_at, updated_at)
SELECT job.id, 0, progress.fraction, progress.next_offset, progress.records, progress.position,
       progress.saves, progress.done, {now}, {now}
  FROM job JOIN progress ON progress.job_id = job.rerun_of
 WHERE job.run_id = :run_id AND (job.state = 'RUNNING' OR job.state <> 'RUNNING')

-- name: pipeline_hold
-- A caller that starts a run of it waits until this transaction has ended.
UPDATE pipeline SET runs = runs WHERE id = :pipeline_id
