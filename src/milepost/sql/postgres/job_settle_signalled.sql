-- A signal that came during the attempt, which did not take it, wakes the job that it puts to sleep;
-- an older one could have been read, and would wake it again after every attempt. The job's row is
-- held by now: a signal is either seen here, or will see a job that waits.
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'wake', version = version + 1, actor = :actor, detail = 'signal',
       delay_us = NULL, queued_seq = nextval('queued_seq')
 WHERE id = ANY(:id::uuid[]) AND state = 'WAITING'
   AND EXISTS (SELECT 1 FROM signal WHERE signal.job_id = job.id AND signal.fence = job.fence)
RETURNING job.id::text
