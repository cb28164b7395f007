-- Sends on what waits for another signature than those that it was tried with. They stay on its row:
-- who has one of them does not wake it again.
-- (`% 1 = 0` is always true: it makes the planner expect few rows, and look each up by its id.)
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
       queued_seq = nextval('queued_seq')
  FROM fitting
 WHERE job.id = fitting.id AND fitting.fence % 1 = 0
RETURNING job.id::text
