-- each: sends on what waits for another signature than those that it was tried with. They stay on its
-- row: who has one of them does not wake it again.
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'wake', version = version + 1, actor = :actor, detail = 'signature', phase = NULL,
       queued_seq = {now}
 WHERE rowid IN (SELECT rowid FROM job INDEXED BY job_unfit
                  WHERE state = 'WAITING' AND unfit IS NOT NULL AND phase = 'unfit'
                    AND kind = :kind AND kind_version = :kind_version
                    AND instr(unfit, :signature) = 0
                    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
                  LIMIT :most)
RETURNING id
