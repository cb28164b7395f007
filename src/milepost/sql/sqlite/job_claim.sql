-- packed 4
-- Takes the first jobs of each (queue, priority), from a floor. A dead worker gets nothing. The outer
-- loop is the line and the inner one the index, each in its order: ORDER BY would sort the backlog.
-- No job.*: all of it would be read. A suspect, whose loss would end it, is claimed `alone` or not at
-- all.
SELECT json_group_array(json_array(id, kind, kind_version, fence + 1, length(payload), codec, errors,
         losses, polls, releases, retries, poll_limit, poison_limit, timeout_us, policy, run_id, step,
         ordinal, trace, queue, priority, queued_seq, tenant, channel,
         CASE WHEN deadline_at IS NOT NULL THEN deadline_at - {now} END, origin_id)),
       CAST(group_concat(payload, '') AS BLOB),
       json_group_array(number)
  FROM (SELECT job.rowid AS number, job.id, job.kind, job.kind_version, job.fence, job.payload,
               job.codec, job.errors, job.losses, job.polls, job.releases, job.retries,
               job.poll_limit, job.poison_limit, job.timeout_us, job.policy, job.run_id, job.step,
               job.ordinal, job.trace, job.queue, job.priority, job.queued_seq, job.tenant,
               job.channel, job.deadline_at, job.origin_id
          FROM {rows:queue priority floor} AS line CROSS JOIN job INDEXED BY job_claim
         WHERE job.queue = line.queue AND job.priority = line.priority
           AND job.state = 'QUEUED' AND job.queued_seq >= line.floor
           AND (:kinds IS NULL OR kind || ' ' || kind_version IN (SELECT value FROM json_each(:kinds)))
           AND errors + losses <= retries
           AND (losses - poison_limit >= -1 OR (losses > 0 AND errors + losses - retries >= 0))
               = :alone
           AND (run_id IS NULL
                OR EXISTS (SELECT 1 FROM run
                            WHERE run.id = job.run_id
                              AND run.state IN ('CREATED', 'QUEUED', 'RUNNING', 'FINALIZING')))
           AND EXISTS (SELECT 1 FROM worker
                        WHERE id = :worker_id AND state <> 'STOPPED' AND lease_until > {now})
           AND NOT EXISTS (SELECT 1 FROM queue WHERE queue.name = line.queue AND paused)
         LIMIT :most)
-- then
UPDATE job
   SET state = 'RUNNING', move = 'claim', version = version + 1, fence = fence + 1,
       worker_id = :worker_id, actor = :worker_id,
       detail = CASE WHEN :alone THEN 'alone' END, phase = NULL,
       started_at = coalesce(started_at, {now})
 WHERE rowid IN (SELECT value FROM json_each(:picked))
