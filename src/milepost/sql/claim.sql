-- Jobs on their way to a worker: the claim, and who is told that there is work.

-- name: job_claim
-- Takes the first jobs of each (queue, priority), from a floor; a dead worker gets nothing. A
-- suspect, whose loss would end it, is claimed `alone` or not at all; other jobs whose loss would end
-- them are not claimed `ahead` of a slot. Jobs under a limit, and those of a queue that has one, are
-- for job_claim_limited.
-- postgres
-- Below the floor the index may hold only dead entries that an old snapshot keeps alive. The
-- worker's row is held so that it cannot be buried meanwhile, and only where a job was found: a look that finds none
-- writes nothing, and waits for no disk. A run whose first job this is begins.
-- Rows are updated where they were found, by ctid, which no index has to be asked for. A row that
-- another transaction has changed since this one's snapshot is locked in a place that the snapshot
-- does not see: it is passed over, and taken by the next claim.
-- For the planner: a run's state is asked for by a scalar subquery, because EXISTS may read the
-- whole table of runs into a hash.
WITH line AS MATERIALIZED (
  SELECT l.queue, l.priority, l.floor
    FROM unnest(:queue::text[], :priority::smallint[], :floor::bigint[])
         WITH ORDINALITY AS l (queue, priority, floor, place)
   WHERE (SELECT paused FROM queue WHERE queue.name = l.queue) IS NOT TRUE
     AND NOT EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'queue' AND name = l.queue)
   ORDER BY l.place
), picked AS MATERIALIZED (
  SELECT found.place
    FROM line CROSS JOIN LATERAL (
         SELECT job.ctid AS place FROM job
          WHERE job.queue = line.queue AND job.priority = line.priority
            AND job.state = 'QUEUED' AND job.limit_key IS NULL AND job.queued_seq >= line.floor
            AND (:kinds::text[] IS NULL OR kind || ' ' || kind_version = ANY(:kinds::text[]))
            AND {spent} IS NOT TRUE
            AND {suspect} = :alone::boolean
            AND (NOT :ahead::boolean OR {over} < 0)
            AND (run_id IS NULL
                 OR (SELECT run.state FROM run WHERE run.id = job.run_id)
                    IN {active})
          ORDER BY limit_key, queued_seq
          LIMIT (SELECT :most::bigint)
            FOR UPDATE OF job SKIP LOCKED) found
   LIMIT :most
), me AS MATERIALIZED (
  SELECT id FROM worker
   WHERE id = :worker_id AND state <> 'STOPPED' AND lease_until > {now}
     AND EXISTS (SELECT 1 FROM picked)
     FOR KEY SHARE
), taken AS (
UPDATE job
   SET state = 'RUNNING', move = 'claim', version = version + 1, fence = job.fence + 1,
       worker_id = :worker_id, actor = :worker_id,
       detail = CASE WHEN :alone::boolean THEN 'alone' END, phase = NULL,
       started_at = coalesce(started_at, {now})
 WHERE job.ctid = ANY (ARRAY(SELECT picked.place FROM me, picked))
RETURNING {columns:claim job. | job.deadline_at AS remaining_us
          | CASE WHEN :timed::boolean AND (job.due_at IS NOT NULL OR job.run_id IS NULL)
            THEN coalesce(job.due_at, job.created_at) END AS waited_us AS waited_us}
), new AS MATERIALIZED (
  SELECT id FROM run
   WHERE id = ANY(ARRAY(SELECT DISTINCT run_id FROM taken WHERE run_id IS NOT NULL))
     AND state = 'QUEUED'
   ORDER BY depth DESC NULLS FIRST, id
     FOR NO KEY UPDATE
), begun AS (
UPDATE run
   SET state = 'RUNNING', move = 'begin', version = version + 1, actor = :worker_id, detail = NULL,
       started_at = coalesce(started_at, {now})
  FROM new
 WHERE run.id = new.id
)
SELECT {columns:claim
       | (extract(epoch FROM deadline_at - {now}) * 1000000)::bigint AS remaining_us
       | (date_part('epoch', {now} - waited_us) * 1000000)::bigint AS waited_us}
  FROM taken
-- sqlite: bytes 4
-- The outer loop is the line and the inner one the index, each in its order: ORDER BY would sort
-- the backlog. No job.*: all of it would be read.
SELECT json_group_array(json_array(
         {columns:claim | fence + 1 AS fence | length(payload) AS payload
         | CASE WHEN deadline_at IS NOT NULL THEN deadline_at - {now} END AS remaining_us})),
       CAST(group_concat(payload, '') AS BLOB),
       json_group_array(number)
  FROM (SELECT job.rowid AS number,
               {columns:claim job. | job.deadline_at AS remaining_us
               | CASE WHEN :timed AND (job.due_at IS NOT NULL OR job.run_id IS NULL)
                      THEN {now} - coalesce(job.due_at, job.created_at) END AS waited_us AS waited_us}
          FROM {rows:queue priority floor} AS line CROSS JOIN job INDEXED BY job_claim
         WHERE job.queue = line.queue AND job.priority = line.priority
           AND job.state = 'QUEUED' AND job.limit_key IS NULL AND job.queued_seq >= line.floor
           AND (:kinds IS NULL OR kind || ' ' || kind_version IN (SELECT value FROM json_each(:kinds)))
           AND {spent} IS NOT TRUE
           AND {suspect} = :alone
           AND (NOT :ahead OR {over} < 0)
           AND (run_id IS NULL
                OR EXISTS (SELECT 1 FROM run
                            WHERE run.id = job.run_id
                              AND run.state IN {active}))
           AND EXISTS (SELECT 1 FROM worker
                        WHERE id = :worker_id AND state <> 'STOPPED' AND lease_until > {now})
           AND NOT EXISTS (SELECT 1 FROM queue WHERE queue.name = line.queue AND paused)
           AND NOT EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'queue' AND name = line.queue)
         LIMIT :most)
-- then
UPDATE job
   SET state = 'RUNNING', move = 'claim', version = version + 1, fence = fence + 1,
       worker_id = :worker_id, actor = :worker_id,
       detail = CASE WHEN :alone THEN 'alone' END, phase = NULL,
       started_at = coalesce(started_at, {now})
 WHERE rowid IN (SELECT value FROM json_each(:picked))

-- name: job_suspects
-- The first suspects in line: jobs whose loss would end them, because they were lost so often, and which
-- therefore run with no other in their process. Those that stand after a place come first, then it goes on
-- from the top. There are few, and mostly none: an index has them, and those whose budget is spent.
-- postgres
WITH few AS MATERIALIZED (
  SELECT id, state, errors, losses, retries, recoveries, kind, kind_version, queue, priority, queued_seq,
         run_id, limit_key
    FROM job
   WHERE {at_limit}
     AND state IN {pending}
)
SELECT queue, priority, queued_seq, few.id::text,
       limit_key IS NOT NULL OR EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'queue' AND name = few.queue)
  FROM few
 WHERE state = 'QUEUED' AND {spent} IS NOT TRUE
   AND (:kinds::text[] IS NULL OR kind || ' ' || kind_version = ANY(:kinds::text[]))
   AND (:queues::text[] IS NULL OR queue = ANY(:queues::text[]))
   AND (SELECT paused FROM queue WHERE queue.name = few.queue) IS NOT TRUE
   AND (run_id IS NULL
        OR (SELECT run.state FROM run WHERE run.id = few.run_id)
           IN {active})
 ORDER BY (-priority, queued_seq, few.id)
          > (-(:after_priority::integer), :after_seq::bigint, :after_id::uuid) DESC,
       priority DESC, queued_seq, few.id
 LIMIT :most
-- sqlite
SELECT queue, priority, queued_seq, id,
       limit_key IS NOT NULL OR EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'queue' AND name = job.queue)
  FROM job INDEXED BY job_spent
 WHERE {at_limit}
   AND state IN {pending}
   AND state = 'QUEUED' AND {spent} IS NOT TRUE
   AND (:kinds IS NULL OR kind || ' ' || kind_version IN (SELECT value FROM json_each(:kinds)))
   AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
   AND NOT EXISTS (SELECT 1 FROM queue WHERE queue.name = job.queue AND paused)
   AND (run_id IS NULL
        OR EXISTS (SELECT 1 FROM run
                    WHERE run.id = job.run_id
                      AND run.state IN {active}))
 ORDER BY (-priority, queued_seq, id) > (-:after_priority, :after_seq, :after_id) DESC,
       priority DESC, queued_seq, id
 LIMIT :most

-- name: run_begin
-- Begins the runs whose first job was claimed.
-- postgres
-- Nothing to do: the claim itself begins the run, so that both commit together.
-- sqlite
UPDATE run
   SET state = 'RUNNING', move = 'begin', version = version + 1, actor = :actor, detail = NULL,
       started_at = coalesce(started_at, {now})
 WHERE id IN (SELECT value FROM json_each(:id)) AND state = 'QUEUED'
RETURNING id

-- name: job_next_due
-- Microseconds until something sleeping is due; negative when overdue.
-- postgres
SELECT (extract(epoch FROM min(due_at) - {now}) * 1000000)::bigint
  FROM job WHERE state IN {sleeping}
-- sqlite
SELECT min(due_at) - {now} FROM job WHERE state IN {sleeping}

-- name: worker_hint
-- postgres
-- Tells those who rest that there may be work; nobody is told when none rests, because notifying
-- serialises commits.
SELECT pg_notify({channel}, '') WHERE EXISTS (SELECT 1 FROM worker WHERE state IN {resting})
-- sqlite
-- Those who rest look at the file's version.
SELECT NULL WHERE false
