-- Jobs whose arguments do not fit the function, waiting for another one.

-- name: unfit_kinds
-- The kinds of which jobs wait for another signature.
SELECT DISTINCT kind, kind_version FROM job
 WHERE state = 'WAITING' AND unfit IS NOT NULL AND phase = 'unfit'

-- name: unfit_release
-- Lets a job be tried once more by whatever worker comes first.
-- postgres
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'wake', version = version + 1, actor = :actor, detail = 'released', phase = NULL, unfit = NULL,
       queued_seq = {requeued}
 WHERE id = :id AND state = 'WAITING' AND phase = 'unfit'
RETURNING version
-- sqlite
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'wake', version = version + 1, actor = :actor, detail = 'released', phase = NULL, unfit = NULL,
       queued_seq = {requeued}
 WHERE id = :id AND state = 'WAITING' AND phase = 'unfit'
RETURNING version

-- name: unfit_wait
-- Gives back jobs whose arguments do not fit the function: they wait for another one, or a person.
-- No row back means that the lease was lost, or that the job was asked to stop.
-- postgres
UPDATE job
   SET state = 'WAITING', move = 'release', version = version + 1, worker_id = NULL, actor = :actor,
       detail = i.detail, due_at = NULL, phase = 'unfit', releases = releases + 1,
       unfit = CASE WHEN strpos(job.unfit, i.signature) > 0 THEN job.unfit
                    ELSE right(concat_ws(' ', job.unfit, i.signature), 500) END
  FROM unnest(:id::uuid[], :fence::bigint[], :signature::text[], :detail::text[])
       AS i (id, fence, signature, detail)
 WHERE job.id = i.id AND job.fence = i.fence AND i.fence % 1 = 0
   AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END
   AND job.cancel_reason IS NULL
   AND (SELECT run.state FROM run WHERE run.id = job.run_id) IS DISTINCT FROM 'STOPPING'
RETURNING job.id::text
-- sqlite: each
UPDATE job
   SET state = 'WAITING', move = 'release', version = version + 1, worker_id = NULL, actor = :actor,
       detail = :detail, due_at = NULL, phase = 'unfit', releases = releases + 1,
       unfit = CASE WHEN instr(unfit, :signature) > 0 THEN unfit
                    ELSE substr(ltrim(coalesce(unfit, '') || ' ' || :signature), -500) END
 WHERE id = :id AND fence = :fence AND state = 'RUNNING' AND cancel_reason IS NULL
   AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')
RETURNING id

-- name: unfit_wake
-- Sends on what waits for another signature than those that it was tried with. They stay on its
-- row: who has one of them does not wake it again.
-- postgres
WITH fitting AS MATERIALIZED (
  SELECT job.id, job.fence
    FROM unnest(:kind::text[], :kind_version::integer[], :signature::text[])
         AS i (kind, kind_version, signature)
    JOIN job ON job.kind = i.kind AND job.kind_version = i.kind_version
   WHERE job.state = 'WAITING' AND job.unfit IS NOT NULL AND job.phase = 'unfit'
     AND strpos(job.unfit, i.signature) = 0
     AND (:queues::text IS NULL
          OR job.queue IN (SELECT json_array_elements_text(:queues::text::json)))
   LIMIT :most
     FOR UPDATE OF job SKIP LOCKED
)
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'wake', version = version + 1, actor = :actor, detail = 'signature', phase = NULL,
       queued_seq = {requeued}
  FROM fitting
 WHERE job.id = fitting.id AND fitting.fence % 1 = 0
RETURNING job.id::text
-- sqlite: each
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'wake', version = version + 1, actor = :actor, detail = 'signature', phase = NULL,
       queued_seq = {requeued}
 WHERE rowid IN (SELECT rowid FROM job INDEXED BY job_unfit
                  WHERE state = 'WAITING' AND unfit IS NOT NULL AND phase = 'unfit'
                    AND kind = :kind AND kind_version = :kind_version
                    AND instr(unfit, :signature) = 0
                    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
                  LIMIT :most)
RETURNING id
