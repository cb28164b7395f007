-- Requests over HTTP as jobs: their replies, and the callbacks they wait for.

-- name: run_responses
-- A page of what became of a step's jobs, and of the batches within a batch, each in their order; of a
-- run that was resumed, the successes.
-- postgres
SELECT * FROM (
  SELECT id::text, ordinal, state, fence, phase, result, error, cause, cancel_reason, false FROM job
   WHERE run_id = :run_id AND step = 0 AND (state = 'RUNNING' OR state <> 'RUNNING')
     AND id > coalesce(:after::uuid, '00000000-0000-0000-0000-000000000000')
     AND (:ended::int = 0 OR state = 'SUCCEEDED')
   ORDER BY job.id
   LIMIT :most) AS jobs
UNION ALL
SELECT * FROM (
  SELECT id::text, ordinal, state, fence, phase, report, error, cause, NULL, true FROM run
   WHERE parent_id = :run_id
     AND id > coalesce(:after::uuid, '00000000-0000-0000-0000-000000000000')
     AND (:ended::int = 0 OR state = 'SUCCEEDED')
   ORDER BY run.id
   LIMIT :most) AS batches
-- sqlite
SELECT * FROM (
  SELECT id, ordinal, state, fence, phase, result, error, cause, cancel_reason, false FROM job
   WHERE run_id = :run_id AND step = 0 AND id > coalesce(:after, '')
     AND (:ended = 0 OR state = 'SUCCEEDED')
   ORDER BY id
   LIMIT :most) AS jobs
UNION ALL
SELECT * FROM (
  SELECT id, ordinal, state, fence, phase, report, error, cause, NULL, true FROM run
   WHERE parent_id = :run_id AND id > coalesce(:after, '')
     AND (:ended = 0 OR state = 'SUCCEEDED')
   ORDER BY id
   LIMIT :most) AS batches

-- name: signal_waiting
-- Names those of the jobs for which a signal has come.
-- postgres
SELECT DISTINCT job_id::text FROM signal WHERE job_id = ANY(:id::uuid[])
-- sqlite
SELECT DISTINCT job_id FROM signal WHERE job_id IN (SELECT value FROM json_each(:id))
