-- The specs' own tables as views, and `jobs` and `runs` for people at a prompt. All are read-only.

-- begin rendered: views
-- Payloads are opaque bytes: what is not JSON must not make a view fail.
CREATE FUNCTION milepost_json(codec text, payload bytea) RETURNS jsonb
  LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  RETURN CASE WHEN codec = 'json' THEN convert_from(payload, 'UTF8')::jsonb END;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
  RETURN NULL;
END $$;

-- E: one row for every move of a task, written by the move itself (H-54).
CREATE VIEW audit_logs AS
SELECT
  journal.subject_id || ':' || journal.seq AS id,
  journal.subject_id AS task_id,
  journal.move AS event,
  CASE
    WHEN journal.from_state = 'RUNNING' THEN 'running'
    WHEN journal.from_state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED', 'RETRYING') THEN 'pending'
    WHEN journal.from_state = 'SUCCEEDED' THEN 'done'
    WHEN journal.from_state IN ('FAILED', 'CANCELLED') THEN 'error'
  END AS from_status,
  CASE
    WHEN journal.to_state = 'RUNNING' THEN 'running'
    WHEN journal.to_state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED', 'RETRYING') THEN 'pending'
    WHEN journal.to_state = 'SUCCEEDED' THEN 'done'
    WHEN journal.to_state IN ('FAILED', 'CANCELLED') THEN 'error'
  END AS to_status,
  journal.from_state AS from_state,
  journal.to_state AS to_state,
  journal.actor AS worker_id,
  journal.fence AS fence,
  journal.at AS created_at,
  journal.detail AS detail
  FROM journal
 WHERE journal.machine = 'job' AND journal.move <> 'snapshot';

-- E: the lease belongs to the worker and shows here.
CREATE VIEW tasks AS
SELECT
  job.id AS id,
  CASE
    WHEN job.state = 'RUNNING' THEN 'running'
    WHEN job.state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED', 'RETRYING') THEN 'pending'
    WHEN job.state = 'SUCCEEDED' THEN 'done'
    WHEN job.state IN ('FAILED', 'CANCELLED') THEN 'error'
  END AS status,
  job.errors + job.losses + CASE WHEN job.state IN ('RUNNING', 'SUCCEEDED') THEN 1 ELSE 0 END AS try_count,
  coalesce(job.recoveries, job.retries) + 1 AS max_tries,
  (SELECT lease_until FROM worker WHERE worker.id = job.worker_id) AS lease_timeout,
  job.worker_id AS worker_id,
  job.kind AS kind,
  job.queue AS queue,
  job.created_at AS created_at,
  (SELECT at FROM journal WHERE subject_id = job.id AND machine = 'job' AND seq = job.version) AS updated_at,
  job.error AS error
  FROM job;

-- D: null on success as it asks; what went wrong before stays in `jobs` (H-25).
CREATE VIEW job_lifecycle AS
SELECT
  job.id AS "jobId",
  CASE
    WHEN state = 'WAITING' AND fence > 0 THEN 'RETRYING'
    WHEN state IN ('CREATED', 'GATED', 'WAITING') THEN 'CREATED'
    WHEN state IN ('READY', 'QUEUED') THEN 'QUEUED'
    WHEN state = 'RUNNING' THEN 'RUNNING'
    WHEN state = 'RETRYING' THEN 'RETRYING'
    WHEN state = 'SUCCEEDED' THEN 'SUCCEEDED'
    WHEN state IN ('FAILED', 'CANCELLED') THEN 'FAILED'
  END AS "state",
  job.created_at AS "createdAt",
  coalesce(job.started_at, (SELECT at FROM journal WHERE subject_id = job.id AND machine = 'job'
      AND to_state = 'RUNNING' ORDER BY seq LIMIT 1)) AS "startedAt",
  CASE WHEN job.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
    THEN coalesce(job.finished_at, (SELECT at FROM journal WHERE subject_id = job.id AND machine = 'job'
      AND to_state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND move <> 'erase' ORDER BY seq DESC LIMIT 1)) END AS "completedAt",
  job.errors + job.losses
    - CASE WHEN job.state = 'FAILED' AND CASE WHEN job.move = 'erase'
    THEN (SELECT move FROM journal WHERE subject_id = job.id AND machine = 'job'
      AND to_state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND move <> 'erase' ORDER BY seq DESC LIMIT 1) ELSE job.move END IN ('fail', 'lose') THEN 1 ELSE 0 END AS "retryCount",
  job.retries AS "maxRetries",
  CASE
    WHEN job.state = 'SUCCEEDED' THEN NULL
    WHEN job.state = 'CANCELLED' THEN 'cancelled' || coalesce(': ' || job.cancel_reason, '')
    WHEN coalesce(job.cause, CASE WHEN job.state = 'FAILED' THEN CASE CASE WHEN job.move = 'erase'
    THEN (SELECT move FROM journal WHERE subject_id = job.id AND machine = 'job'
      AND to_state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND move <> 'erase' ORDER BY seq DESC LIMIT 1) ELSE job.move END
    WHEN 'fail' THEN 'error' WHEN 'expire' THEN 'deadline' WHEN 'reject' THEN 'rejected' WHEN 'lose' THEN 'attempts_exhausted' END END) = 'deadline' THEN 'its deadline has passed'
    ELSE coalesce(coalesce(milepost_json('json', convert_to(job.error, 'UTF8')) ->> 'message', job.error), coalesce(job.cause, CASE WHEN job.state = 'FAILED' THEN CASE CASE WHEN job.move = 'erase'
    THEN (SELECT move FROM journal WHERE subject_id = job.id AND machine = 'job'
      AND to_state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND move <> 'erase' ORDER BY seq DESC LIMIT 1) ELSE job.move END
    WHEN 'fail' THEN 'error' WHEN 'expire' THEN 'deadline' WHEN 'reject' THEN 'rejected' WHEN 'lose' THEN 'attempts_exhausted' END END),
      CASE WHEN job.losses > 0 THEN 'its worker died or its lease expired' END)
  END AS "lastError",
  CASE
    WHEN job.state IN ('FAILED', 'CANCELLED') THEN 'TERMINAL'
    WHEN job.state <> 'SUCCEEDED' AND job.errors + job.losses > 0 THEN 'RETRYABLE'
  END AS "errorType"
  FROM job;

-- B: completed_at is NULL for a failed run, as B has it; `runs` knows every end (H-14).
CREATE VIEW run_metadata AS
SELECT
  run.id AS run_id,
  CASE coalesce((WITH RECURSIVE origin (id, mode, older) AS (
        SELECT run.id, run.mode, coalesce(run.rerun_of, run.resumes)
        UNION ALL
        SELECT o.id, o.mode, coalesce(o.rerun_of, o.resumes)
          FROM origin JOIN run AS o ON o.id = origin.older
         WHERE origin.mode IN ('forced', 'retry'))
      SELECT mode FROM origin WHERE NOT coalesce(mode, '') IN ('forced', 'retry')),
      CASE WHEN run.watermark_before IS NULL THEN 'full' END)
    WHEN 'full' THEN 'full' WHEN 'remap' THEN 'full' ELSE 'incremental' END AS run_type,
  (SELECT CAST(coalesce(sum(open + succeeded + failed + cancelled), 0) AS bigint) FROM step JOIN step_count
      ON step_count.run_id = step.run_id AND step_count.step = step.number
      WHERE step.run_id = (WITH RECURSIVE origin (id, mode, older) AS (
        SELECT run.id, run.mode, coalesce(run.rerun_of, run.resumes)
        UNION ALL
        SELECT o.id, o.mode, coalesce(o.rerun_of, o.resumes)
          FROM origin JOIN run AS o ON o.id = origin.older
         WHERE origin.mode = 'forced')
      SELECT id FROM origin WHERE NOT coalesce(mode, '') = 'forced')
        AND step.role = 'partition') AS expected_workers,
  (SELECT CAST(coalesce(sum(succeeded), 0) AS bigint) FROM step JOIN step_count
      ON step_count.run_id = step.run_id AND step_count.step = step.number
      WHERE step.run_id = (WITH RECURSIVE origin (id, mode, older) AS (
        SELECT run.id, run.mode, coalesce(run.rerun_of, run.resumes)
        UNION ALL
        SELECT o.id, o.mode, coalesce(o.rerun_of, o.resumes)
          FROM origin JOIN run AS o ON o.id = origin.older
         WHERE origin.mode = 'forced')
      SELECT id FROM origin WHERE NOT coalesce(mode, '') = 'forced')
        AND step.role = 'partition') AS completed_workers,
  (SELECT CAST(coalesce(sum(failed + cancelled), 0) AS bigint) FROM step JOIN step_count
      ON step_count.run_id = step.run_id AND step_count.step = step.number
      WHERE step.run_id = (WITH RECURSIVE origin (id, mode, older) AS (
        SELECT run.id, run.mode, coalesce(run.rerun_of, run.resumes)
        UNION ALL
        SELECT o.id, o.mode, coalesce(o.rerun_of, o.resumes)
          FROM origin JOIN run AS o ON o.id = origin.older
         WHERE origin.mode = 'forced')
      SELECT id FROM origin WHERE NOT coalesce(mode, '') = 'forced')
        AND step.role = 'partition') AS failed_workers,
  run.watermark_before AS watermark_before,
  CASE WHEN run.state = 'SUCCEEDED' THEN run.watermark_after END AS watermark_after,
  coalesce(run.started_at, (SELECT at FROM journal WHERE subject_id = run.id AND machine = 'run'
      AND to_state IN ('RUNNING', 'FINALIZING') ORDER BY seq LIMIT 1), run.created_at) AS started_at,
  CASE WHEN run.state = 'SUCCEEDED'
    THEN coalesce(run.finished_at, (SELECT at FROM journal WHERE subject_id = run.id AND machine = 'run'
      AND to_state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND move <> 'erase' ORDER BY seq DESC LIMIT 1)) END AS completed_at
  FROM run
 WHERE EXISTS (SELECT 1 FROM step WHERE step.run_id = run.id AND step.role = 'partition');

-- B: partitions that a worker has claimed; the last one's name outlives its lease (H-42).
CREATE VIEW worker_runs AS
SELECT
  job.id AS id,
  job.run_id AS run_id,
  'partition-' || job.ordinal AS partition_id,
  coalesce(job.worker_id, (SELECT CASE move WHEN 'claim' THEN actor ELSE detail::json ->> 'worker' END FROM journal WHERE subject_id = job.id AND machine = 'job'
      AND move IN ('claim', 'snapshot') ORDER BY seq DESC LIMIT 1), '') AS worker_id,
  CASE
    WHEN job.state = 'SUCCEEDED' THEN 'completed'
    WHEN job.state IN ('FAILED', 'CANCELLED') THEN 'failed'
    WHEN job.state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED', 'RUNNING', 'RETRYING') THEN 'running'
  END AS status,
  coalesce(progress.records, 0) AS records_processed,
  coalesce(milepost_json('json', convert_to(job.error, 'UTF8')) ->> 'message', job.error) AS error_message,
  milepost_json(job.codec, job.payload) AS work_item_payload,
  coalesce(job.started_at, (SELECT at FROM journal WHERE subject_id = job.id AND machine = 'job'
      AND to_state = 'RUNNING' ORDER BY seq LIMIT 1)) AS started_at,
  CASE WHEN job.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
    THEN coalesce(job.finished_at, (SELECT at FROM journal WHERE subject_id = job.id AND machine = 'job'
      AND to_state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND move <> 'erase' ORDER BY seq DESC LIMIT 1)) END AS completed_at
  FROM job
  JOIN step ON step.run_id = job.run_id AND step.number = job.step
  LEFT JOIN progress ON progress.job_id = job.id
 WHERE step.role = 'partition'
   AND (job.state = 'RUNNING' OR job.state <> 'RUNNING') AND job.fence > 0;

-- B: every partition, those that nobody has claimed yet included.
CREATE VIEW partition_progress AS
SELECT
  job.run_id AS run_id,
  'partition-' || job.ordinal AS partition_id,
  coalesce(progress.next_offset, 0) AS next_offset,
  job.state = 'SUCCEEDED' AS completed,
  coalesce(progress.created_at, job.created_at) AS created_at,
  greatest(coalesce((SELECT at FROM journal WHERE subject_id = job.id AND machine = 'job' AND seq = job.version), job.created_at),
    coalesce(progress.updated_at, job.created_at)) AS updated_at
  FROM job
  JOIN step ON step.run_id = job.run_id AND step.number = job.step
  LEFT JOIN progress ON progress.job_id = job.id
 WHERE step.role = 'partition'
   AND (job.state = 'RUNNING' OR job.state <> 'RUNNING');

-- For people at a prompt: what there is to know of a job.
CREATE VIEW jobs AS
SELECT
  job.id AS id,
  job.tenant AS tenant,
  job.kind AS kind,
  job.kind_version AS kind_version,
  job.queue AS queue,
  job.priority AS priority,
  job.state AS state,
  job.phase AS phase,
  job.version AS version,
  job.move AS move,
  job.actor AS actor,
  job.detail AS detail,
  job.fence AS fence,
  job.worker_id AS worker_id,
  job.errors AS errors,
  job.losses AS losses,
  job.polls AS polls,
  job.releases AS releases,
  job.retries AS retries,
  job.recoveries AS recoveries,
  job.poll_limit AS poll_limit,
  job.poison_limit AS poison_limit,
  job.timeout_us AS timeout_us,
  job.cancel_reason AS cancel_reason,
  job.error AS error,
  job.error_type AS error_type,
  job.error_code AS error_code,
  job.fingerprint AS fingerprint,
  job.tags AS tags,
  job.unique_key AS unique_key,
  job.limit_key AS limit_key,
  job.units AS units,
  job.run_id AS run_id,
  job.step AS step,
  job.ordinal AS ordinal,
  job.parent_id AS parent_id,
  job.rerun_of AS rerun_of,
  job.origin_id AS origin_id,
  job.trace AS trace,
  job.channel AS channel,
  job.policy AS policy,
  job.codec AS codec,
  job.errors + job.losses + CASE WHEN job.state IN ('RUNNING', 'SUCCEEDED') THEN 1 ELSE 0 END AS attempt,
  coalesce(job.cause, CASE WHEN job.state = 'FAILED' THEN CASE CASE WHEN job.move = 'erase'
    THEN (SELECT move FROM journal WHERE subject_id = job.id AND machine = 'job'
      AND to_state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND move <> 'erase' ORDER BY seq DESC LIMIT 1) ELSE job.move END
    WHEN 'fail' THEN 'error' WHEN 'expire' THEN 'deadline' WHEN 'reject' THEN 'rejected' WHEN 'lose' THEN 'attempts_exhausted' END END) AS cause,
  milepost_json(job.codec, job.payload) AS payload,
  milepost_json(job.codec, job.result) AS result,
  job.created_at AS created_at,
  job.due_at AS due_at,
  job.deadline_at AS deadline_at,
  job.start_by AS start_by,
  coalesce(job.started_at, (SELECT at FROM journal WHERE subject_id = job.id AND machine = 'job'
      AND to_state = 'RUNNING' ORDER BY seq LIMIT 1)) AS started_at,
  CASE WHEN job.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
    THEN coalesce(job.finished_at, (SELECT at FROM journal WHERE subject_id = job.id AND machine = 'job'
      AND to_state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND move <> 'erase' ORDER BY seq DESC LIMIT 1)) END AS finished_at,
  (SELECT at FROM journal WHERE subject_id = job.id AND machine = 'job' AND seq = job.version) AS updated_at,
  CASE
    WHEN state = 'GATED' THEN 'GATE_WAITING'
    WHEN state = 'WAITING' THEN 'POLL_WAITING'
    WHEN state = 'QUEUED' AND coalesce((SELECT transport FROM queue WHERE name = job.queue), 'store') <> 'store' THEN 'QUEUED'
    WHEN state IN ('CREATED', 'READY', 'QUEUED') THEN 'READY'
    WHEN state = 'RUNNING' THEN 'IN_PROGRESS'
    WHEN state = 'RETRYING' THEN 'ERROR'
    WHEN state = 'SUCCEEDED' THEN 'COMPLETED'
    WHEN state IN ('FAILED', 'CANCELLED') THEN 'FAILED'
  END AS spec_a,
  CASE WHEN (SELECT step.role FROM step WHERE step.run_id = job.run_id AND step.number = job.step) IN ('consolidate', 'reduce') THEN
  CASE
    WHEN state = 'RUNNING' AND phase = 'ValidatingRun' THEN 'ValidatingRun'
    WHEN state = 'RUNNING' AND phase = 'LoadingPricingRules' THEN 'LoadingPricingRules'
    WHEN state = 'RUNNING' AND phase = 'FetchingRawBatch' THEN 'FetchingRawBatch'
    WHEN state = 'RUNNING' AND phase = 'ProcessingBatch' THEN 'ProcessingBatch'
    WHEN state = 'RUNNING' AND phase = 'MappingDiamonds' THEN 'MappingDiamonds'
    WHEN state = 'RUNNING' AND phase = 'ApplyingPricing' THEN 'ApplyingPricing'
    WHEN state = 'RUNNING' AND phase = 'UpsertingBatch' THEN 'UpsertingBatch'
    WHEN state = 'RUNNING' AND phase = 'MarkingConsolidated' THEN 'MarkingConsolidated'
    WHEN state = 'RUNNING' AND phase = 'UpdatingRunMetadata' THEN 'UpdatingRunMetadata'
    WHEN state = 'RUNNING' AND phase = 'AdvancingWatermark' THEN 'AdvancingWatermark'
    WHEN state = 'WAITING' AND fence > 0 THEN 'Consolidating'
    WHEN state IN ('RUNNING', 'RETRYING') THEN 'Consolidating'
    WHEN state IN ('CREATED', 'GATED') THEN 'WorkersRunning'
    WHEN state IN ('WAITING', 'READY', 'QUEUED') THEN 'ConsolidationTriggered'
    WHEN state = 'SUCCEEDED' THEN 'Completed'
    WHEN state IN ('FAILED', 'CANCELLED') THEN 'Failed'
  END
  ELSE CASE
    WHEN state = 'RUNNING' AND substr(phase, 1, 4) = 'page' THEN 'PartitionFetchingPages'
    WHEN state = 'WAITING' AND fence > 0 THEN 'PartitionInProgress'
    WHEN state IN ('RUNNING', 'RETRYING') THEN 'PartitionInProgress'
    WHEN state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED') THEN 'PartitionPending'
    WHEN state = 'SUCCEEDED' THEN 'PartitionCompleted'
    WHEN state IN ('FAILED', 'CANCELLED') THEN 'PartitionFailed'
  END END AS spec_b,
  CASE
    WHEN state = 'RUNNING' AND phase = 'REQUESTING' THEN 'REQUESTING'
    WHEN state = 'RUNNING' AND phase = 'RESPONSE' THEN 'RESPONSE'
    WHEN state = 'RUNNING' THEN 'REQUEST'
    WHEN state = 'WAITING' AND fence > 0 THEN 'WAITING'
    WHEN state = 'RETRYING' THEN 'WAITING'
    WHEN state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED') THEN 'IDLE'
    WHEN state = 'SUCCEEDED' THEN 'COMPLETE'
    WHEN state IN ('FAILED', 'CANCELLED') THEN 'FAIL'
  END AS spec_c,
  CASE
    WHEN state = 'WAITING' AND fence > 0 THEN 'RETRYING'
    WHEN state IN ('CREATED', 'GATED', 'WAITING') THEN 'CREATED'
    WHEN state IN ('READY', 'QUEUED') THEN 'QUEUED'
    WHEN state = 'RUNNING' THEN 'RUNNING'
    WHEN state = 'RETRYING' THEN 'RETRYING'
    WHEN state = 'SUCCEEDED' THEN 'SUCCEEDED'
    WHEN state IN ('FAILED', 'CANCELLED') THEN 'FAILED'
  END AS spec_d,
  CASE
    WHEN state = 'RUNNING' THEN 'running'
    WHEN state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED', 'RETRYING') THEN 'pending'
    WHEN state = 'SUCCEEDED' THEN 'done'
    WHEN state IN ('FAILED', 'CANCELLED') THEN 'error'
  END AS spec_e
  FROM job
 WHERE (job.state = 'RUNNING' OR job.state <> 'RUNNING');

-- For people at a prompt: what there is to know of a run.
CREATE VIEW runs AS
SELECT
  run.id AS id,
  run.tenant AS tenant,
  run.kind AS kind,
  run.kind_version AS kind_version,
  run.queue AS queue,
  run.priority AS priority,
  run.state AS state,
  run.phase AS phase,
  run.version AS version,
  run.move AS move,
  run.actor AS actor,
  run.detail AS detail,
  run.cause AS cause,
  run.current_step AS current_step,
  run.ending AS ending,
  run.mode AS mode,
  run.error AS error,
  run.tags AS tags,
  run.unique_key AS unique_key,
  run.parent_id AS parent_id,
  run.rerun_of AS rerun_of,
  run.resumes AS resumes,
  run.ordinal AS ordinal,
  run.depth AS depth,
  run.trace AS trace,
  run.channel AS channel,
  run.policy AS policy,
  run.codec AS codec,
  milepost_json(run.codec, run.payload) AS payload,
  milepost_json(run.codec, run.report) AS report,
  run.created_at AS created_at,
  run.due_at AS due_at,
  run.deadline_at AS deadline_at,
  run.watermark_before AS watermark_before,
  run.watermark_after AS watermark_after,
  coalesce(run.started_at, (SELECT at FROM journal WHERE subject_id = run.id AND machine = 'run'
      AND to_state IN ('RUNNING', 'FINALIZING') ORDER BY seq LIMIT 1)) AS started_at,
  CASE WHEN run.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
    THEN coalesce(run.finished_at, (SELECT at FROM journal WHERE subject_id = run.id AND machine = 'run'
      AND to_state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND move <> 'erase' ORDER BY seq DESC LIMIT 1)) END AS finished_at,
  (SELECT at FROM journal WHERE subject_id = run.id AND machine = 'run' AND seq = run.version) AS updated_at,
  CASE
    WHEN state = 'CREATED' THEN 'BUILDING'
    WHEN state = 'QUEUED' THEN 'QUEUED'
    WHEN state = 'RUNNING' AND EXISTS (SELECT 1 FROM job WHERE run_id = run.id AND state = 'RETRYING') THEN 'ERRORED'
    WHEN state = 'STOPPING' AND phase = 'reduce' THEN 'FINALIZE'
    WHEN state IN ('RUNNING', 'STOPPING') THEN 'IN_PROGRESS'
    WHEN state = 'FINALIZING' THEN 'FINALIZE'
    WHEN state = 'SUCCEEDED' THEN 'COMPLETED'
    WHEN state = 'FAILED' THEN 'FAILED'
    WHEN state = 'CANCELLED' THEN 'CANCELLED'
  END AS spec_a,
  CASE
    WHEN state IN ('CREATED', 'QUEUED') THEN 'Created'
    WHEN state IN ('RUNNING', 'STOPPING') AND phase = 'consolidate' THEN 'Consolidating'
    WHEN state = 'STOPPING' AND phase = 'reduce' THEN 'Consolidating'
    WHEN state IN ('RUNNING', 'STOPPING') THEN 'WorkersRunning'
    WHEN state = 'FINALIZING' THEN 'Consolidating'
    WHEN state = 'SUCCEEDED' THEN 'Completed'
    WHEN state IN ('FAILED', 'CANCELLED') THEN 'Failed'
  END AS spec_b,
  CASE
    WHEN state IN ('CREATED', 'QUEUED') THEN 'IDLE'
    WHEN state IN ('RUNNING', 'STOPPING', 'FINALIZING') THEN 'REQUEST'
    WHEN state = 'SUCCEEDED' THEN 'COMPLETE'
    WHEN state IN ('FAILED', 'CANCELLED') THEN 'FAIL'
  END AS spec_c
  FROM run;

-- A view of one table would pass writes on to it.
CREATE FUNCTION milepost_refuse_view() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'MP002',
    MESSAGE = format('milepost: %s on %s is refused: it is a view; moves are made on the tables'
                     ' job and run', TG_OP, TG_TABLE_NAME);
END $$;

CREATE TRIGGER audit_logs_refuse INSTEAD OF INSERT OR UPDATE OR DELETE ON audit_logs FOR EACH ROW
  EXECUTE FUNCTION milepost_refuse_view();
CREATE TRIGGER tasks_refuse INSTEAD OF INSERT OR UPDATE OR DELETE ON tasks FOR EACH ROW
  EXECUTE FUNCTION milepost_refuse_view();
CREATE TRIGGER job_lifecycle_refuse INSTEAD OF INSERT OR UPDATE OR DELETE ON job_lifecycle FOR EACH ROW
  EXECUTE FUNCTION milepost_refuse_view();
CREATE TRIGGER run_metadata_refuse INSTEAD OF INSERT OR UPDATE OR DELETE ON run_metadata FOR EACH ROW
  EXECUTE FUNCTION milepost_refuse_view();
CREATE TRIGGER worker_runs_refuse INSTEAD OF INSERT OR UPDATE OR DELETE ON worker_runs FOR EACH ROW
  EXECUTE FUNCTION milepost_refuse_view();
CREATE TRIGGER partition_progress_refuse INSTEAD OF INSERT OR UPDATE OR DELETE ON partition_progress FOR EACH ROW
  EXECUTE FUNCTION milepost_refuse_view();
CREATE TRIGGER jobs_refuse INSTEAD OF INSERT OR UPDATE OR DELETE ON jobs FOR EACH ROW
  EXECUTE FUNCTION milepost_refuse_view();
CREATE TRIGGER runs_refuse INSTEAD OF INSERT OR UPDATE OR DELETE ON runs FOR EACH ROW
  EXECUTE FUNCTION milepost_refuse_view();
-- end rendered: views
