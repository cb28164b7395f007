-- Wakes a job that waits; one whose arguments do not fit reads its signals once they do.
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'wake', version = version + 1, actor = :actor, detail = 'signal',
       delay_us = NULL, queued_seq = nextval('queued_seq')
 WHERE id = :id AND state = 'WAITING' AND phase IS DISTINCT FROM 'unfit'
RETURNING version
