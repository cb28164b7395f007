-- Limits: the claim of jobs under one, their rules, their buckets.

-- name: job_claim_limited
-- Takes jobs that are under a limit: by their key, or because their queue has one; or of those with
-- these ids. Where the first in line are blocked, it goes by keys: those that were freed (`freed`), of
-- the newest jobs, and so many after a place in their order (`after`). Every key's first comes before
-- any key's second. The answer tells how the look went.
-- postgres
-- A key's live leases grow by this statement alone; whoever runs it holds the key's stripe until the
-- commit is visible, and counts them after that (milepost_live has a snapshot of its own). It waits for
-- nobody but a bucket, whose other writers hold it last.
WITH RECURSIVE clock_now AS MATERIALIZED (
  SELECT {now} AS now
), me AS MATERIALIZED (
  SELECT id FROM worker
   WHERE id = :worker_id AND state <> 'STOPPED' AND lease_until > {now}
     FOR KEY SHARE
), stripes AS MATERIALIZED (
  SELECT milepost_lock_stripes(:stripe::integer, :stripes::integer) AS locked FROM me
), rule AS MATERIALIZED (
  SELECT scope, name, most, ordered, burst, per_us / rate AS unit_us FROM limit_rule
   WHERE scope = 'job' OR scope = 'queue'
), queued AS MATERIALIZED (
  SELECT l.queue, rule.name IS NOT NULL AS limited
    FROM (SELECT DISTINCT unnest(:queue::text[]) AS queue) AS l
    LEFT JOIN rule ON rule.scope = 'queue' AND rule.name = l.queue
   WHERE (SELECT paused FROM queue WHERE queue.name = l.queue) IS NOT TRUE
     AND CASE WHEN rule.name IS NULL THEN true ELSE milepost_lock_queue(l.queue) END
), line AS MATERIALIZED (
  SELECT l.queue, l.priority, l.floor, l.place, queued.limited
    FROM unnest(:queue::text[], :priority::smallint[], :floor::bigint[])
         WITH ORDINALITY AS l (queue, priority, floor, place)
    JOIN queued ON queued.queue = l.queue
), hop (place, queue, priority, key, n, more) AS (
  SELECT line.place, line.queue, line.priority, :after::text COLLATE "C", 0, true
    FROM line, stripes
   WHERE :visits > 0
   UNION ALL
  -- A stripe that is another's is left by its first key, for the next one of ours.
  SELECT hop.place, hop.queue, hop.priority,
         CASE WHEN next.ours OR next.key IS NULL THEN next.key
              ELSE coalesce((SELECT min(s) FROM unnest((SELECT locked FROM stripes)) AS s
                              WHERE s COLLATE "C" > left(next.key, 1)), 'z') || '/' END,
         hop.n + CASE WHEN next.ours THEN 1 ELSE 0 END, next.ours
    FROM hop
   CROSS JOIN LATERAL (
         SELECT (SELECT limit_key FROM job
                  WHERE job.queue = hop.queue AND job.priority = hop.priority AND job.state = 'QUEUED'
                    AND job.limit_key > hop.key
                  ORDER BY limit_key LIMIT 1) AS key OFFSET 0) AS found
   CROSS JOIN LATERAL (
         SELECT found.key, coalesce(left(found.key, 1) = ANY ((SELECT locked FROM stripes)::text[]), false) AS ours
         OFFSET 0) AS next
   WHERE hop.key IS NOT NULL AND hop.n < :visits
), front AS MATERIALIZED (
  SELECT found.place, line.place AS line, found.queue, found.priority, found.key, found.seq, found.units
    FROM line CROSS JOIN LATERAL (
         SELECT job.ctid AS place, job.queue, job.priority, limit_key AS key, queued_seq AS seq, units
           FROM job
          WHERE job.queue = line.queue AND job.priority = line.priority
            AND job.state = 'QUEUED' AND job.limit_key IS NOT NULL AND job.queued_seq >= line.floor
            AND left(job.limit_key, 1) = ANY ((SELECT locked FROM stripes)::text[])
            AND (:kinds::text[] IS NULL OR kind || ' ' || kind_version = ANY(:kinds::text[]))
            AND {spent} IS NOT TRUE
            AND {suspect} = :alone::boolean
            AND (run_id IS NULL
                 OR (SELECT run.state FROM run WHERE run.id = job.run_id)
                    IN {active})
          ORDER BY queued_seq
          LIMIT (SELECT :front::bigint)) found
   LIMIT :front
), newest AS MATERIALIZED (
  SELECT DISTINCT line.place AS line, line.queue, line.priority, found.key
    FROM line CROSS JOIN LATERAL (
         SELECT limit_key AS key FROM job
          WHERE job.queue = line.queue AND job.priority = line.priority
            AND job.state = 'QUEUED' AND job.limit_key IS NOT NULL
          ORDER BY queued_seq DESC
          LIMIT (SELECT :newest::bigint)) found
   WHERE left(found.key, 1) = ANY ((SELECT locked FROM stripes)::text[])
), visited AS MATERIALIZED (
  SELECT place AS line, queue, priority, key FROM hop WHERE more AND n > 0 AND key IS NOT NULL
   UNION
  SELECT line, queue, priority, key FROM newest
   UNION
  SELECT line.place, line.queue, line.priority, freed.told ->> 0
    FROM json_array_elements(:freed::text::json) AS freed (told)
    JOIN line ON line.queue = freed.told ->> 1 AND line.priority = (freed.told ->> 2)::smallint
   WHERE left(freed.told ->> 0, 1) = ANY ((SELECT locked FROM stripes)::text[])
), heads AS MATERIALIZED (
  SELECT found.place, visited.line, found.queue, found.priority, found.key, found.seq, found.units
    FROM visited CROSS JOIN LATERAL (
         SELECT * FROM (
           SELECT job.ctid AS place, job.queue, job.priority, limit_key AS key, queued_seq AS seq, units,
                  kind, kind_version, errors, losses, retries, recoveries, poison_limit, run_id
             FROM job
            WHERE job.queue = visited.queue AND job.priority = visited.priority
              AND job.state = 'QUEUED' AND job.limit_key = visited.key
            ORDER BY limit_key, queued_seq
            LIMIT greatest(64, :quantum)) AS first
          WHERE (:kinds::text[] IS NULL OR kind || ' ' || kind_version = ANY(:kinds::text[]))
            AND {spent} IS NOT TRUE
            AND {suspect} = :alone::boolean
            AND (run_id IS NULL
                 OR (SELECT run.state FROM run WHERE run.id = first.run_id)
                    IN {active})
          LIMIT :quantum) found
), plain AS MATERIALIZED (
  SELECT found.place, line.place AS line, found.queue, found.priority, NULL::text AS key, found.seq, found.units
    FROM line CROSS JOIN LATERAL (
         SELECT job.ctid AS place, job.queue, job.priority, queued_seq AS seq, units
           FROM job
          WHERE job.queue = line.queue AND job.priority = line.priority
            AND job.state = 'QUEUED' AND job.limit_key IS NULL AND job.queued_seq >= line.floor
            AND (:kinds::text[] IS NULL OR kind || ' ' || kind_version = ANY(:kinds::text[]))
            AND {spent} IS NOT TRUE
            AND {suspect} = :alone::boolean
            AND (run_id IS NULL
                 OR (SELECT run.state FROM run WHERE run.id = job.run_id)
                    IN {active})
          ORDER BY limit_key, queued_seq
          LIMIT (SELECT CASE WHEN :id::uuid[] IS NULL THEN :most::bigint ELSE 0 END)) found
   WHERE line.limited AND (SELECT true FROM me)
), named AS MATERIALIZED (
  SELECT job.ctid AS place, line.place AS line, job.queue, job.priority, limit_key AS key, queued_seq AS seq, units
    FROM job JOIN line ON line.queue = job.queue AND line.priority = job.priority
   WHERE job.id = ANY (ARRAY(SELECT unnest(:id::uuid[]))) AND job.state = 'QUEUED'
     AND (job.limit_key IS NULL OR left(job.limit_key, 1) = ANY ((SELECT locked FROM stripes)::text[]))
     AND (:kinds::text[] IS NULL OR kind || ' ' || kind_version = ANY(:kinds::text[]))
     AND {spent} IS NOT TRUE
     AND {suspect} = :alone::boolean
     AND (run_id IS NULL
          OR (SELECT run.state FROM run WHERE run.id = job.run_id)
             IN {active})
     AND (SELECT true FROM me)
), found AS MATERIALIZED (
  SELECT place, line, queue, priority, key, seq, units FROM front
   UNION
  SELECT place, line, queue, priority, key, seq, units FROM heads
   UNION
  SELECT place, line, queue, priority, key, seq, units FROM plain
   UNION
  SELECT place, line, queue, priority, key, seq, units FROM named
), keyed AS MATERIALIZED (
  SELECT keys.key, keys.queue, keys.priority, rule.most, coalesce(rule.ordered, false) AS ordered, rule.unit_us, rule.burst
    FROM (SELECT DISTINCT ON (key) key, queue, priority FROM found WHERE key IS NOT NULL ORDER BY key, seq) AS keys
    LEFT JOIN rule ON rule.scope = 'job' AND rule.name = split_part(keys.key, '/', 2)
), live AS MATERIALIZED (
  SELECT counted.key, counted.turn, keyed.unit_us, keyed.ordered,
         CASE WHEN keyed.ordered THEN 1 ELSE keyed.most END - counted.live AS room,
         keyed.burst * keyed.unit_us
         - greatest(0, (extract(epoch FROM bucket.free_at - (SELECT now FROM clock_now)) * 1000000)::double precision) AS left_us,
         coalesce(bucket.free_at <= (SELECT now FROM clock_now), true) AS rested
    FROM milepost_live(ARRAY(SELECT key FROM keyed ORDER BY key), ARRAY(SELECT ordered FROM keyed ORDER BY key),
                       ARRAY(SELECT queue FROM keyed ORDER BY key), ARRAY(SELECT priority FROM keyed ORDER BY key))
         AS counted
    JOIN keyed ON keyed.key = counted.key
    LEFT JOIN bucket ON bucket.scope = 'job' AND bucket.key = counted.key AND keyed.unit_us IS NOT NULL
), ranked AS MATERIALIZED (
  SELECT found.*,
         CASE WHEN found.key IS NOT NULL THEN row_number() OVER line ELSE 1 END AS turn,
         CASE WHEN found.key IS NOT NULL THEN sum(coalesce(found.units, 1)) OVER line END AS taken
    FROM found
  WINDOW line AS (PARTITION BY found.key ORDER BY found.line, found.seq)
), judged AS MATERIALIZED (
  SELECT ranked.*, live.left_us, live.unit_us, live.rested,
         (live.room IS NULL OR ranked.turn <= live.room)
         AND (live.ordered IS NOT TRUE OR ranked.seq = live.turn) AS free,
         live.unit_us IS NULL OR ranked.taken * live.unit_us <= live.left_us + 0.5
         OR (ranked.turn = 1 AND live.rested) AS earned
    FROM ranked LEFT JOIN live ON live.key = ranked.key
), busy AS MATERIALIZED (
  SELECT counted.queue, rule.most - counted.live AS room, rule.unit_us,
         rule.burst * rule.unit_us
         - greatest(0, (extract(epoch FROM bucket.free_at - (SELECT now FROM clock_now)) * 1000000)::double precision) AS left_us
    FROM milepost_live_in(ARRAY(SELECT queue FROM queued WHERE limited)) AS counted
    JOIN rule ON rule.scope = 'queue' AND rule.name = counted.queue
    LEFT JOIN bucket ON bucket.scope = 'queue' AND bucket.key = counted.queue AND rule.unit_us IS NOT NULL
), queueing AS MATERIALIZED (
  SELECT judged.place, judged.line, judged.turn, judged.seq, judged.queue,
         row_number() OVER (PARTITION BY judged.queue ORDER BY judged.line, judged.turn, judged.seq) AS rank
    FROM judged WHERE judged.free AND judged.earned
), chosen AS MATERIALIZED (
  SELECT queueing.place FROM queueing LEFT JOIN busy ON busy.queue = queueing.queue
   WHERE (busy.room IS NULL OR queueing.rank <= busy.room)
     AND (busy.unit_us IS NULL OR queueing.rank * busy.unit_us <= busy.left_us + 0.5)
   ORDER BY queueing.line, queueing.turn, queueing.seq
   LIMIT :most
), held AS MATERIALIZED (
  SELECT job.ctid AS place FROM job
   WHERE job.ctid = ANY (ARRAY(SELECT place FROM chosen)) AND job.state = 'QUEUED'
     FOR UPDATE OF job SKIP LOCKED
), taken AS (
UPDATE job
   SET state = 'RUNNING', move = 'claim', version = version + 1, fence = job.fence + 1,
       worker_id = :worker_id, actor = :worker_id,
       detail = CASE WHEN :alone::boolean THEN 'alone' END, phase = NULL,
       started_at = coalesce(started_at, {now})
 WHERE job.ctid = ANY (ARRAY(SELECT place FROM held))
RETURNING {columns:claim job. | job.deadline_at AS remaining_us
          | CASE WHEN :timed::boolean AND (job.due_at IS NOT NULL OR job.run_id IS NULL)
            THEN coalesce(job.due_at, job.created_at) END AS waited_us AS waited_us}, units
), paid AS (
INSERT INTO bucket AS b (scope, key, free_at)
SELECT bill.scope, bill.key, clock_now.now + bill.cost_us * interval '1 microsecond'
  FROM (SELECT 'job' AS scope, taken.limit_key AS key, ceil(sum(coalesce(taken.units, 1)) * keyed.unit_us) AS cost_us
          FROM taken JOIN keyed ON keyed.key = taken.limit_key
         WHERE keyed.unit_us IS NOT NULL GROUP BY taken.limit_key, keyed.unit_us
         UNION ALL
        SELECT 'queue', taken.queue, ceil(count(*) * busy.unit_us)
          FROM taken JOIN busy ON busy.queue = taken.queue
         WHERE busy.unit_us IS NOT NULL GROUP BY taken.queue, busy.unit_us) AS bill, clock_now
 ORDER BY bill.scope, bill.key
ON CONFLICT (scope, key) DO UPDATE
  SET free_at = greatest(b.free_at, (SELECT now FROM clock_now)) + (excluded.free_at - (SELECT now FROM clock_now))
), heard AS (
DELETE FROM hint
 WHERE :id::uuid[] IS NOT NULL
   AND job_id = ANY (ARRAY(SELECT job_id FROM hint WHERE job_id = ANY (ARRAY(SELECT id FROM taken))
                              FOR UPDATE SKIP LOCKED))
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
), told AS MATERIALIZED (
  SELECT json_build_array(
           coalesce(cardinality((SELECT locked FROM stripes)), 0),
           (SELECT count(*) FROM front),
           (SELECT count(*) FROM judged WHERE NOT (free AND earned)),
           (SELECT count(*) FROM visited),
           (SELECT CASE WHEN max(n) >= :visits THEN max(key) END FROM hop WHERE more AND n > 0),
           (SELECT min(taken * unit_us - left_us) FROM judged WHERE free AND NOT earned),
           (SELECT min(queueing.rank * busy.unit_us - busy.left_us)
              FROM queueing JOIN busy ON busy.queue = queueing.queue
             WHERE queueing.rank * busy.unit_us > busy.left_us + 0.5)
         )::text AS look
)
SELECT {columns:claim
       | (extract(epoch FROM deadline_at - {now}) * 1000000)::bigint AS remaining_us
       | (date_part('epoch', {now} - waited_us) * 1000000)::bigint AS waited_us}, told.look
  FROM told LEFT JOIN taken ON true
-- sqlite
-- Statements of its own: there is one writer, and Python is quicker to choose (store/choice.py).

-- name: limit_front
-- The first jobs in line that are under a limit.
-- postgres
-- Nothing to do: job_claim_limited has chosen.
-- sqlite
WITH line AS MATERIALIZED (
  SELECT l.queue, l.priority, l.floor, l.place
    FROM {rows:queue priority floor place} AS l
   WHERE NOT EXISTS (SELECT 1 FROM queue WHERE queue.name = l.queue AND paused)
     AND EXISTS (SELECT 1 FROM worker
                  WHERE id = :worker_id AND state <> 'STOPPED' AND lease_until > {now})
)
SELECT json_group_array(json_array(number, line, seq, queue, priority, key, units))
  FROM (SELECT job.rowid AS number, line.place AS line, queued_seq AS seq, job.queue, job.priority, limit_key AS key, units
          FROM line CROSS JOIN job INDEXED BY job_front
         WHERE job.queue = line.queue AND job.priority = line.priority
           AND job.state = 'QUEUED' AND job.limit_key IS NOT NULL AND job.queued_seq >= line.floor
     AND (:kinds IS NULL OR kind || ' ' || kind_version IN (SELECT value FROM json_each(:kinds)))
     AND {spent} IS NOT TRUE
     AND {suspect} = :alone
     AND (run_id IS NULL
          OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state IN {active}))
         LIMIT :most)

-- name: limit_plain
-- The first jobs in line that are under no limit, but in a queue that has one.
-- postgres
-- Nothing to do: job_claim_limited has chosen.
-- sqlite
WITH line AS MATERIALIZED (
  SELECT l.queue, l.priority, l.floor, l.place
    FROM {rows:queue priority floor place} AS l
   WHERE NOT EXISTS (SELECT 1 FROM queue WHERE queue.name = l.queue AND paused)
     AND EXISTS (SELECT 1 FROM worker
                  WHERE id = :worker_id AND state <> 'STOPPED' AND lease_until > {now})
)
SELECT json_group_array(json_array(number, line, seq, queue, priority, key, units))
  FROM (SELECT job.rowid AS number, line.place AS line, queued_seq AS seq, job.queue, job.priority, limit_key AS key, units
          FROM line CROSS JOIN job INDEXED BY job_claim
         WHERE job.queue = line.queue AND job.priority = line.priority
           AND job.state = 'QUEUED' AND job.limit_key IS NULL AND job.queued_seq >= line.floor
           AND EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'queue' AND name = line.queue)
     AND (:kinds IS NULL OR kind || ' ' || kind_version IN (SELECT value FROM json_each(:kinds)))
     AND {spent} IS NOT TRUE
     AND {suspect} = :alone
     AND (run_id IS NULL
          OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state IN {active}))
         LIMIT :most)

-- name: limit_named
-- The jobs with these ids.
-- postgres
-- Nothing to do: job_claim_limited has chosen.
-- sqlite
WITH line AS MATERIALIZED (
  SELECT l.queue, l.priority, l.floor, l.place
    FROM {rows:queue priority floor place} AS l
   WHERE NOT EXISTS (SELECT 1 FROM queue WHERE queue.name = l.queue AND paused)
     AND EXISTS (SELECT 1 FROM worker
                  WHERE id = :worker_id AND state <> 'STOPPED' AND lease_until > {now})
)
SELECT json_group_array(json_array(number, line, seq, queue, priority, key, units))
  FROM (SELECT job.rowid AS number, line.place AS line, queued_seq AS seq, job.queue, job.priority, limit_key AS key, units
          FROM json_each(:id) AS asked CROSS JOIN job CROSS JOIN line
         WHERE job.id = asked.value AND line.queue = job.queue AND line.priority = job.priority
           AND +job.state = 'QUEUED'
     AND (:kinds IS NULL OR kind || ' ' || kind_version IN (SELECT value FROM json_each(:kinds)))
     AND {spent} IS NOT TRUE
     AND {suspect} = :alone
     AND (run_id IS NULL
          OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state IN {active}))
         LIMIT :most)

-- name: limit_heads
-- The first jobs of keys: of those that were freed, of the newest jobs, and of so many that follow a place in
-- the order of keys. Says also which keys were looked at, and the last one if there may be more.
-- postgres
-- Nothing to do: job_claim_limited has chosen.
-- sqlite
WITH RECURSIVE line AS MATERIALIZED (
  SELECT l.queue, l.priority, l.floor, l.place
    FROM {rows:queue priority floor place} AS l
   WHERE NOT EXISTS (SELECT 1 FROM queue WHERE queue.name = l.queue AND paused)
     AND EXISTS (SELECT 1 FROM worker
                  WHERE id = :worker_id AND state <> 'STOPPED' AND lease_until > {now})
), hop (place, queue, priority, key, n) AS (
  SELECT place, queue, priority, :after, 0 FROM line WHERE :visits > 0
   UNION ALL
  SELECT place, queue, priority,
         (SELECT limit_key FROM job INDEXED BY job_claim
           WHERE job.queue = hop.queue AND job.priority = hop.priority AND job.state = 'QUEUED'
             AND job.limit_key > hop.key
           ORDER BY limit_key LIMIT 1),
         n + 1
    FROM hop WHERE hop.key IS NOT NULL AND n < :visits
), hopped AS MATERIALIZED (
  SELECT place, queue, priority, key, n FROM hop WHERE n > 0 AND key IS NOT NULL
), visited AS MATERIALIZED (
  SELECT place AS line, queue, priority, key FROM hopped
   UNION
  SELECT line.place, line.queue, line.priority, job.limit_key
    FROM line CROSS JOIN job
   WHERE job.rowid IN (SELECT last.rowid FROM job AS last INDEXED BY job_front
                        WHERE last.queue = line.queue AND last.priority = line.priority
                          AND last.state = 'QUEUED' AND last.limit_key IS NOT NULL
                        ORDER BY last.queued_seq DESC
                        LIMIT :newest)
   UNION
  SELECT line.place, line.queue, line.priority, json_extract(freed.value, '$[0]')
    FROM json_each(:freed) AS freed
    JOIN line ON line.queue = json_extract(freed.value, '$[1]') AND line.priority = json_extract(freed.value, '$[2]')
)
SELECT (SELECT json_group_array(json_array(number, line, seq, queue, priority, key, units))
          FROM (SELECT job.rowid AS number, visited.line AS line, queued_seq AS seq, job.queue, job.priority, limit_key AS key, units
                  FROM visited CROSS JOIN job
                 WHERE job.rowid IN (
                       SELECT near.number
                         FROM (SELECT first.rowid AS number, first.kind, first.kind_version, first.errors,
                                      first.losses, first.retries, first.recoveries, first.poison_limit,
                                      first.run_id
                                 FROM job AS first INDEXED BY job_claim
                                WHERE first.queue = visited.queue AND first.priority = visited.priority
                                  AND first.state = 'QUEUED' AND first.limit_key = visited.key
                                ORDER BY first.limit_key, first.queued_seq
                                LIMIT max(64, :quantum)) AS near
                        WHERE (:kinds IS NULL
                               OR near.kind || ' ' || near.kind_version IN (SELECT value FROM json_each(:kinds)))
                          AND {spent} IS NOT TRUE
                          AND {suspect} = :alone
                          AND (near.run_id IS NULL
                               OR EXISTS (SELECT 1 FROM run WHERE run.id = near.run_id AND run.state IN {active}))
                        LIMIT :quantum))),
       (SELECT count(*) FROM visited),
       (SELECT CASE WHEN max(n) >= :visits THEN max(key) END FROM hopped)

-- name: limit_leased
-- The key and the queue of each live lease.
-- postgres
-- Nothing to do: job_claim_limited has counted.
-- sqlite
SELECT json_group_array(limit_key), CASE WHEN :queues THEN json_group_array(queue) ELSE '[]' END
  FROM job INDEXED BY job_held WHERE state = 'RUNNING'

-- name: limit_left
-- How far ahead of now buckets are, in microseconds.
-- postgres
-- Nothing to do: job_claim_limited has looked.
-- sqlite
SELECT i.scope, i.key, bucket.free_at - {now}
  FROM {rows:scope key} AS i CROSS JOIN bucket ON bucket.scope = i.scope AND bucket.key = i.key

-- name: limit_turns
-- Which job of an ordered key has the turn; none while one is between two attempts.
-- postgres
-- Nothing to do: job_claim_limited has looked.
-- sqlite
SELECT i.key,
       CASE WHEN NOT EXISTS (SELECT 1 FROM job INDEXED BY job_turn
                              WHERE limit_key = i.key AND fence > 0 AND state IN {sleeping})
            THEN (SELECT first.rowid FROM job AS first INDEXED BY job_claim
                   WHERE first.queue = i.queue AND first.priority = i.priority
                     AND first.state = 'QUEUED' AND first.limit_key = i.key
                   ORDER BY first.limit_key, first.queued_seq
                   LIMIT 1) END
  FROM {rows:key queue priority} AS i

-- name: limit_take
-- Moves the chosen jobs.
-- postgres
-- Nothing to do: job_claim_limited has moved them.
-- sqlite: bytes 4
SELECT json_group_array(json_array(
         {columns:claim | fence + 1 AS fence | length(payload) AS payload
         | CASE WHEN deadline_at IS NOT NULL THEN deadline_at - {now} END AS remaining_us})),
       CAST(group_concat(payload, '') AS BLOB),
       json_group_array(number)
  FROM (SELECT job.rowid AS number,
               {columns:claim job. | job.deadline_at AS remaining_us
               | CASE WHEN :timed AND (job.due_at IS NOT NULL OR job.run_id IS NULL)
                      THEN {now} - coalesce(job.due_at, job.created_at) END AS waited_us AS waited_us}
          FROM {rows:chosen} AS i CROSS JOIN job WHERE job.rowid = i.chosen
         LIMIT :most)
-- then
UPDATE job
   SET state = 'RUNNING', move = 'claim', version = version + 1, fence = fence + 1,
       worker_id = :worker_id, actor = :worker_id,
       detail = CASE WHEN :alone THEN 'alone' END, phase = NULL,
       started_at = coalesce(started_at, {now})
 WHERE rowid IN (SELECT value FROM json_each(:picked))

-- name: limit_pay
-- Takes units from buckets.
-- postgres
-- Nothing to do: job_claim_limited has taken them.
-- sqlite
INSERT INTO bucket AS b (scope, key, free_at)
SELECT i.scope, i.key, {now} + i.cost_us FROM {rows:scope key cost_us} AS i WHERE true
ON CONFLICT (scope, key) DO UPDATE
  SET free_at = max(b.free_at, {now}) + (excluded.free_at - {now})

-- name: limit_rules
SELECT scope, name, most, rate, per_us, burst, ordered, units, declared, declared_before, set_at, set_by, reason
  FROM limit_rule ORDER BY scope, name

-- name: limit_rule_put
INSERT INTO limit_rule (scope, name, most, rate, per_us, burst, ordered, units, declared, declared_at,
                        declared_before, set_at, set_by, reason)
VALUES (:scope, :name, :most, :rate, :per_us, :burst, :ordered, :units, :declared, {now}, :declared_before,
        CASE WHEN CAST(:by AS text) IS NOT NULL THEN {now} END, :by, :reason)
ON CONFLICT (scope, name) DO UPDATE
  SET most = excluded.most, rate = excluded.rate, per_us = excluded.per_us, burst = excluded.burst,
      ordered = excluded.ordered, units = excluded.units, declared = excluded.declared,
      declared_at = CASE WHEN limit_rule.declared = excluded.declared THEN limit_rule.declared_at
                         ELSE excluded.declared_at END,
      declared_before = excluded.declared_before,
      set_at = excluded.set_at, set_by = excluded.set_by, reason = excluded.reason

-- name: limit_rule_hold
-- postgres
SELECT 1 FROM limit_rule WHERE scope = :scope AND name = :name FOR UPDATE
-- sqlite
-- Nothing to do: there is one writer.

-- name: limit_rule_drop
DELETE FROM limit_rule WHERE scope = :scope AND name = :name

-- name: limit_changed
INSERT INTO limit_change (at, scope, name, before, after, actor, reason)
VALUES ({now}, :scope, :name, :before, :after, :actor, :reason)

-- name: limit_changes
SELECT n, at, scope, name, before, after, actor, reason FROM limit_change
 WHERE (CAST(:scope AS text) IS NULL OR scope = :scope) AND (CAST(:name AS text) IS NULL OR name = :name)
 ORDER BY n DESC LIMIT :most

-- name: limit_any
-- Whether any job may be under a limit: without one, nobody looks for them.
SELECT 1 WHERE EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'job' OR scope = 'queue')
            OR EXISTS (SELECT 1 FROM job WHERE state = 'QUEUED' AND limit_key IS NOT NULL)

-- name: bucket_settle
-- Puts right what attempts reserved, by what they counted: more makes the next ones wait, less lets them go.
-- postgres
-- Buckets in the order of their keys, after everything else that is locked.
WITH owed AS MATERIALIZED (
  SELECT job.limit_key AS key, sum(i.amount - coalesce(job.units, 1)) * min(rule.per_us / rule.rate) AS us
    FROM unnest(:id::uuid[], :name::text[], :amount::double precision[]) AS i (id, name, amount)
    JOIN job ON job.id = i.id
    JOIN limit_rule rule ON rule.scope = 'job' AND rule.name = {rule}
                        AND rule.units = i.name AND rule.rate IS NOT NULL
   GROUP BY job.limit_key
), held AS MATERIALIZED (
  SELECT bucket.key FROM bucket WHERE scope = 'job' AND bucket.key IN (SELECT key FROM owed)
   ORDER BY bucket.key FOR UPDATE
)
UPDATE bucket SET free_at = free_at + owed.us * interval '1 microsecond'
  FROM owed JOIN held ON held.key = owed.key
 WHERE bucket.scope = 'job' AND bucket.key = owed.key
-- sqlite
UPDATE bucket SET free_at = free_at + CAST(owed.us AS INTEGER)
  FROM (SELECT job.limit_key AS key, sum(i.amount - coalesce(job.units, 1)) * min(rule.per_us / rule.rate) AS us
          FROM {rows:id name amount} AS i
         CROSS JOIN job ON job.id = i.id
         CROSS JOIN limit_rule AS rule
            ON rule.scope = 'job' AND rule.units = i.name AND rule.rate IS NOT NULL
           AND rule.name = {rule}
         GROUP BY job.limit_key) AS owed
 WHERE bucket.scope = 'job' AND bucket.key = owed.key

-- name: bucket_prune
-- A bucket that is full says what none says.
-- postgres
DELETE FROM bucket
 WHERE (scope, key) IN (SELECT scope, key FROM bucket WHERE free_at < {now} - interval '1 minute'
                         ORDER BY free_at LIMIT :most FOR UPDATE SKIP LOCKED)
RETURNING key
-- sqlite
DELETE FROM bucket
 WHERE (scope, key) IN (SELECT scope, key FROM bucket WHERE free_at < {now} - 60000000
                         ORDER BY free_at LIMIT :most)
RETURNING key
