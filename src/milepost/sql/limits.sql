-- Limits: the claim of jobs under one, their rules, their buckets.

-- name: job_claim_limited
-- Takes jobs that are under a limit: by their key, or because their queue has one; or of those with
-- these ids. Where the first in line are blocked, it goes by keys: those that were freed (`freed`), of
-- the newest jobs, and so many after a place in their order (`after`). The keys of which the
-- fewest run come first. The answer tells how the look went.
-- postgres
-- A key's live leases grow by this statement alone; whoever runs it holds the key's stripe until the
-- commit is visible, and counts them after that (milepost_choose_limited has snapshots of its own). It waits for
-- nobody but a bucket, whose other writers hold it last. A job that came after the statement's own snapshot
-- is passed over, and taken by the next claim.
WITH live AS MATERIALIZED (
  SELECT id FROM worker WHERE id = :worker_id AND state <> 'STOPPED' AND lease_until > {now}
), chosen AS MATERIALIZED (
  SELECT c.places, c.look, c.served
    FROM live CROSS JOIN LATERAL milepost_choose_limited(
           :stripe::integer, :stripes::integer, :queue::text[], :priority::smallint[], :floor::bigint[],
           :bottom::bigint[], :kinds::text[], :alone::boolean, :front::bigint, :visits::bigint, :after::text, :newest::bigint,
           :quantum::bigint, :freed::text::json, :leases::text::json, :id::uuid[], :most::bigint) AS c
), me AS MATERIALIZED (
  SELECT id FROM worker
   WHERE id = :worker_id AND state <> 'STOPPED' AND lease_until > {now}
     AND (SELECT cardinality(places) FROM chosen) > 0
     FOR KEY SHARE
), taken AS (
UPDATE job
   SET state = 'RUNNING', move = 'claim', version = version + 1, fence = job.fence + 1,
       worker_id = :worker_id, actor = :worker_id,
       detail = CASE WHEN :alone::boolean THEN 'alone' END, phase = NULL,
       started_at = coalesce(started_at, {now}),
       lease_seq = CASE WHEN :leases::text IS NOT NULL OR (SELECT served FROM chosen) <> '{}'
                        THEN (SELECT nextval('queued_seq')) END,
       served = CASE WHEN (SELECT served FROM chosen) <> '{}'
                     THEN job.queue = ANY ((SELECT served FROM chosen)::text[]) END
 WHERE job.ctid = ANY ((SELECT places FROM chosen, me)::tid[])
RETURNING {columns:claim job. | job.deadline_at AS remaining_us
          | CASE WHEN :timed::boolean AND (job.due_at IS NOT NULL OR job.run_id IS NULL)
            THEN coalesce(job.due_at, job.created_at) END AS waited_us AS waited_us}, units, lease_seq
), clock_now AS MATERIALIZED (
  SELECT {now} AS now
), rated AS MATERIALIZED (
  SELECT scope, name, per_us / rate AS unit_us FROM limit_rule
   WHERE rate IS NOT NULL AND scope IN ('job', 'queue')
), paid AS (
INSERT INTO bucket AS b (scope, key, free_at)
-- A hundred years at most: a job that is huge by a rate that was lowered must not stop this claim.
SELECT bill.scope, bill.key, clock_now.now + least(bill.cost_us, 3.15576e15) * interval '1 microsecond'
  FROM clock_now,
       (SELECT rated.scope, taken.limit_key AS key, ceil(sum(coalesce(taken.units, 1)) * min(rated.unit_us)) AS cost_us
          FROM rated JOIN taken ON rated.scope = 'job' AND rated.name = milepost_rule_of(taken.limit_key)
         GROUP BY rated.scope, taken.limit_key
         UNION ALL
        SELECT rated.scope, taken.queue, ceil(count(*) * min(rated.unit_us))
          FROM rated JOIN taken ON rated.scope = 'queue' AND rated.name = taken.queue
         GROUP BY rated.scope, taken.queue) AS bill
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
)
-- The first row has the look in place of an id, and the number of the leases.
SELECT {columns:claim
       | coalesce((SELECT look FROM chosen), '[0, 0, 0, 0, null, null, null]') AS id
       | (SELECT max(lease_seq) FROM taken) AS queued_seq
       | NULL::bigint AS remaining_us
       | NULL::bigint AS waited_us}
  FROM (VALUES (1)) AS one LEFT JOIN taken ON false
 UNION ALL
SELECT {columns:claim
       | (extract(epoch FROM deadline_at - {now}) * 1000000)::bigint AS remaining_us
       | (date_part('epoch', {now} - waited_us) * 1000000)::bigint AS waited_us}
  FROM taken
-- sqlite
-- Statements of its own: there is one writer, and Python is quicker to choose (store/choice.py).

-- name: limit_front
-- The first jobs in line that are under a limit, as a claim has them: most of them are taken. Their rowids and keys
-- come apart: whether all of them may start is told by those.
-- postgres
-- Nothing to do: job_claim_limited has chosen.
-- sqlite: bytes 7
WITH line AS MATERIALIZED (
  SELECT l.queue, l.priority, l.floor, l.place
    FROM {rows:queue priority floor place} AS l
   WHERE NOT EXISTS (SELECT 1 FROM queue WHERE queue.name = l.queue AND paused)
     AND EXISTS (SELECT 1 FROM worker
                  WHERE id = :worker_id AND state <> 'STOPPED' AND lease_until > {now})
)
SELECT json_group_array(json_array(number, line, units,
         {columns:claim | fence + 1 AS fence | length(payload) AS payload
         | CASE WHEN deadline_at IS NOT NULL THEN deadline_at - {now} END AS remaining_us})),
       CAST(group_concat(payload, '') AS BLOB), json_group_array(number), json_group_array(limit_key)
  FROM (SELECT job.rowid AS number, line.place AS line, units,
               {columns:claim job. | job.deadline_at AS remaining_us
               | CASE WHEN job.due_at IS NOT NULL OR job.run_id IS NULL
                      THEN {now} - coalesce(job.due_at, job.created_at) END AS waited_us AS waited_us}
          FROM line CROSS JOIN job INDEXED BY job_front
         WHERE job.queue = line.queue AND job.priority = line.priority
           AND job.state = 'QUEUED' AND coalesce(job.limit_key, '') <> '' AND job.queued_seq >= line.floor
           AND (job.queued_seq > line.floor OR job.rowid > :past)
           AND (:kinds IS NULL OR kind || ' ' || kind_version IN (SELECT value FROM json_each(:kinds)))
           AND {spent} IS NOT TRUE
           AND {suspect} = :alone
           AND (run_id IS NULL
                OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state IN {active}))
         LIMIT :most)

-- name: limit_plain
-- The first jobs in each line that are under no limit, but in a queue that has one: those of a full queue must not
-- hide those of another.
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
          FROM line CROSS JOIN job
         WHERE EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'queue' AND name = line.queue)
           AND job.rowid IN (
               SELECT first.rowid FROM job AS first INDEXED BY job_claim
                WHERE first.queue = line.queue AND first.priority = line.priority
                  AND first.state = 'QUEUED' AND first.limit_key IS NULL AND first.queued_seq >= line.floor
                  AND (:kinds IS NULL OR kind || ' ' || kind_version IN (SELECT value FROM json_each(:kinds)))
                  AND {spent} IS NOT TRUE
                  AND {suspect} = :alone
                  AND (run_id IS NULL
                       OR EXISTS (SELECT 1 FROM run WHERE run.id = first.run_id AND run.state IN {active}))
                ORDER BY first.limit_key, first.queued_seq
                LIMIT :most))

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
-- the order of keys. Says also how many keys were looked at, and the last one if there may be more: of the line that
-- got least far, so that no line's keys are left out.
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
                          AND last.state = 'QUEUED' AND coalesce(last.limit_key, '') <> ''
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
       (SELECT min(key) FROM hopped WHERE n = :visits)

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
-- Which job of an ordered key has the turn; none while one is between two attempts, or while one that was before it
-- is still to be handed to a broker.
-- postgres
-- Nothing to do: job_claim_limited has looked.
-- sqlite
SELECT i.key,
       CASE WHEN NOT EXISTS (SELECT 1 FROM job INDEXED BY job_turn
                              WHERE limit_key = i.key AND fence > 0 AND state IN {sleeping})
            THEN (SELECT first.number
                    FROM (SELECT job.rowid AS number, job.queued_seq AS seq FROM job INDEXED BY job_claim
                           WHERE job.queue = i.queue AND job.priority = i.priority
                             AND job.state = 'QUEUED' AND job.limit_key = i.key
                           ORDER BY job.limit_key, job.queued_seq
                           LIMIT 1) AS first
                   WHERE NOT EXISTS (SELECT 1 FROM job INDEXED BY job_ready
                                      WHERE job.queue = i.queue AND job.priority = i.priority
                                        AND job.state = 'READY' AND job.queued_seq <= first.seq
                                        AND job.limit_key = i.key
                                        AND (job.queued_seq < first.seq OR job.rowid < first.number))) END
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

-- name: limit_move
-- Moves chosen jobs that were read before.
-- postgres
-- Nothing to do: job_claim_limited has moved them.
-- sqlite
UPDATE job
   SET state = 'RUNNING', move = 'claim', version = version + 1, fence = fence + 1,
       worker_id = :worker_id, actor = :worker_id,
       detail = CASE WHEN :alone THEN 'alone' END, phase = NULL,
       started_at = coalesce(started_at, {now})
 WHERE rowid IN (SELECT value FROM json_each(:chosen))

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

-- name: limit_rule_seen
-- Notes that the program of a live worker declares these rules.
-- postgres
UPDATE limit_rule SET declared_at = {now}
 WHERE (scope, name) IN (SELECT rule.scope, rule.name FROM limit_rule AS rule
                           JOIN unnest(:scope::text[], :name::text[]) AS i (scope, name)
                             ON rule.scope = i.scope AND rule.name = i.name
                          WHERE rule.declared IS NOT NULL ORDER BY rule.scope, rule.name FOR UPDATE OF rule)
-- sqlite
UPDATE limit_rule SET declared_at = {now}
 WHERE declared IS NOT NULL AND (scope, name) IN (SELECT i.scope, i.name FROM {rows:scope name} AS i)

-- name: limit_rule_drop
DELETE FROM limit_rule WHERE scope = :scope AND name = :name

-- name: limit_changed
-- postgres
INSERT INTO limit_change (at, scope, name, before, after, key, free_at, actor, reason)
VALUES ({now}, :scope, :name, :before, :after, :key, {now} + :ahead_us::bigint{micros}, :actor, :reason)
-- sqlite
INSERT INTO limit_change (at, scope, name, before, after, key, free_at, actor, reason)
VALUES ({now}, :scope, :name, :before, :after, :key, {now} + :ahead_us, :actor, :reason)

-- name: limit_changes
SELECT n, at, scope, name, before, after, actor, reason, key, free_at FROM limit_change
 WHERE (CAST(:scope AS text) IS NULL OR scope = :scope) AND (CAST(:name AS text) IS NULL OR name = :name)
 ORDER BY n DESC LIMIT :most

-- name: limit_any
-- Whether any job may be under a limit: without one, nobody looks for them.
SELECT 1 WHERE EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'job' OR scope = 'queue')
            OR EXISTS (SELECT 1 FROM job WHERE state = 'QUEUED' AND coalesce(limit_key, '') <> '')

-- name: bucket_settle
-- Puts right what attempts reserved, by what they counted: more makes the next ones wait, less lets them go.
-- A bucket that was full, and removed, while an attempt ran, is there again: what was counted is never lost. Nothing
-- closes a key for more than a hundred years, which every store can write down.
-- postgres
-- Buckets in the order of their keys, after everything else that is locked.
WITH bound AS (
  SELECT :longest_us::double precision AS us
), owed AS MATERIALIZED (
  SELECT job.limit_key AS key,
         greatest(-bound.us, least(bound.us, min(rule.per_us / rule.rate)
           * sum(greatest(-1e15, least(1e15, i.amount)) - coalesce(job.units, 1))))
           * interval '1 microsecond' AS span
    FROM unnest(:id::uuid[], :name::text[], :amount::double precision[]) AS i (id, name, amount)
    JOIN job ON job.id = i.id
    JOIN limit_rule rule ON rule.scope = 'job' AND rule.name = {rule}
                        AND rule.units = i.name AND rule.rate IS NOT NULL
    CROSS JOIN bound
   GROUP BY job.limit_key, bound.us
)
INSERT INTO bucket AS b (scope, key, free_at)
SELECT 'job', owed.key, {now} + owed.span FROM owed ORDER BY owed.key
ON CONFLICT (scope, key) DO UPDATE
  SET free_at = least(b.free_at + (SELECT span FROM owed WHERE owed.key = b.key),
                      {now} + (SELECT us FROM bound) * interval '1 microsecond')
-- sqlite
WITH owed AS MATERIALIZED (
  SELECT job.limit_key AS key,
         CAST(max(-:longest_us, min(:longest_us,
           sum(i.amount - coalesce(job.units, 1)) * min(rule.per_us / rule.rate))) AS INTEGER) AS us
    FROM {rows:id name amount} AS i
   CROSS JOIN job ON job.id = i.id
   CROSS JOIN limit_rule AS rule
      ON rule.scope = 'job' AND rule.units = i.name AND rule.rate IS NOT NULL
     AND rule.name = {rule}
   GROUP BY job.limit_key
)
INSERT INTO bucket AS b (scope, key, free_at)
SELECT 'job', owed.key, {now} + owed.us FROM owed WHERE true
ON CONFLICT (scope, key) DO UPDATE
  SET free_at = min(b.free_at + (SELECT us FROM owed WHERE owed.key = b.key), {now} + :longest_us)

-- name: bucket_prune
-- Removes full buckets: a full one and none mean the same.
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
