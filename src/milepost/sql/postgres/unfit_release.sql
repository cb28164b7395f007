-- Lets a job be tried once more by whatever worker comes first.
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'wake', version = version + 1, actor = :actor, detail = 'released', phase = NULL, unfit = NULL,
       queued_seq = nextval('queued_seq')
 WHERE id = :id AND state = 'WAITING' AND phase = 'unfit'
RETURNING version
