-- Takes the first jobs of each (queue, priority), from a floor: below it the index may hold only
-- dead entries that an old snapshot keeps alive. The worker's row is held so that it cannot be
-- buried meanwhile; a dead worker gets nothing. A run whose first job this is begins.
-- A suspect, whose loss would end it, is claimed `alone` or not at all.
-- For the planner: a run's state is asked for by a scalar subquery, because EXISTS may read the
-- whole table of runs into a hash; a limit that it does not know beforehand keeps it from sorting
-- the backlog; what `% 1 = 0` says is always true, and makes it expect so few rows that it looks each
-- up by its id.
WITH me AS MATERIALIZED (
  SELECT id FROM worker
   WHERE id = :worker_id AND state <> 'STOPPED' AND lease_until > {now}
     FOR KEY SHARE
), line AS MATERIALIZED (
  SELECT l.queue, l.priority, l.floor
    FROM unnest(:queue::text[], :priority::smallint[], :floor::bigint[])
         WITH ORDINALITY AS l (queue, priority, floor, place), me
   WHERE (SELECT paused FROM queue WHERE queue.name = l.queue) IS NOT TRUE
   ORDER BY l.place
), picked AS MATERIALIZED (
  SELECT found.id, found.fence
    FROM line CROSS JOIN LATERAL (
         SELECT id, fence FROM job
          WHERE job.queue = line.queue AND job.priority = line.priority
            AND job.state = 'QUEUED' AND job.queued_seq >= line.floor
            AND (:kinds::text[] IS NULL OR kind || ' ' || kind_version = ANY(:kinds::text[]))
            AND errors + losses <= retries
            AND (losses - poison_limit >= -1 OR (losses > 0 AND errors + losses - retries >= 0))
                = :alone::boolean
            AND (run_id IS NULL
                 OR (SELECT run.state FROM run WHERE run.id = job.run_id)
                    IN ('CREATED', 'QUEUED', 'RUNNING', 'FINALIZING'))
          ORDER BY queued_seq
          LIMIT (SELECT :most::bigint)
            FOR UPDATE OF job SKIP LOCKED) found
   LIMIT :most
), taken AS (
UPDATE job
   SET state = 'RUNNING', move = 'claim', version = version + 1, fence = job.fence + 1,
       worker_id = :worker_id, actor = :worker_id,
       detail = CASE WHEN :alone::boolean THEN 'alone' END, phase = NULL,
       started_at = coalesce(started_at, {now})
  FROM picked
 WHERE job.id = picked.id AND picked.fence % 1 = 0
RETURNING job.id, kind, kind_version, job.fence, payload, codec, errors, losses, polls, releases,
          retries, poll_limit, poison_limit, timeout_us, policy, run_id, step, ordinal, trace, queue,
          priority, queued_seq, tenant, channel, deadline_at, origin_id
), new AS MATERIALIZED (
  SELECT id FROM run
   WHERE id = ANY(ARRAY(SELECT DISTINCT run_id FROM taken WHERE run_id IS NOT NULL))
     AND state = 'QUEUED'
   ORDER BY id
     FOR NO KEY UPDATE
), begun AS (
UPDATE run
   SET state = 'RUNNING', move = 'begin', version = version + 1, actor = :worker_id, detail = NULL,
       started_at = coalesce(started_at, {now})
  FROM new
 WHERE run.id = new.id
)
SELECT id::text, kind, kind_version, fence, payload, codec, errors, losses,
       polls, releases, retries, poll_limit, poison_limit, timeout_us, policy, run_id::text, step,
       ordinal, trace, queue, priority, queued_seq, tenant, channel,
       (extract(epoch FROM deadline_at - {now}) * 1000000)::bigint, origin_id::text
  FROM taken
