-- Messages about ends: taken, delivered, acknowledged.

-- name: outbox_take
-- Takes what is due, with a new fence and until a time; never one whose line has an earlier
-- message.
-- postgres
-- For the planner: what comes first in a line is looked up, for a join would read all that waits.
WITH picked AS MATERIALIZED (
  SELECT o.id, o.fence FROM outbox o
   WHERE o.channel = :channel AND o.delivered_at IS NULL AND o.dead_at IS NULL AND o.due_at <= {now}
     AND (:tenant::text = '*' OR o.tenant = :tenant::text)
     AND o.n = (SELECT e.n FROM outbox e
                 WHERE e.channel = o.channel AND e.line = o.line
                   AND e.delivered_at IS NULL AND e.dead_at IS NULL
                 ORDER BY e.n LIMIT 1)
     AND NOT EXISTS (SELECT 1 FROM channel WHERE name = :channel AND stopped_at IS NOT NULL)
   ORDER BY o.due_at, o.n
   LIMIT :most
     FOR UPDATE SKIP LOCKED
)
UPDATE outbox SET fence = outbox.fence + 1, due_at = {now} + :lease_us{micros}
  FROM picked
 WHERE outbox.id = picked.id AND picked.fence % 1 = 0
RETURNING outbox.id, outbox.machine, outbox.subject_id::text, outbox.seq, outbox.n, outbox.line::text, outbox.channel, outbox.tenant, outbox.queue, outbox.kind, outbox.state, outbox.trace, outbox.fence, outbox.attempts, outbox.place, outbox.error, outbox.created_at, outbox.due_at, outbox.delivered_at, outbox.dead_at
-- sqlite
UPDATE outbox SET fence = fence + 1, due_at = {now} + :lease_us
 WHERE id IN (
         SELECT o.id FROM outbox o
          WHERE o.channel = :channel AND o.delivered_at IS NULL AND o.dead_at IS NULL AND o.due_at <= {now}
            AND (:tenant = '*' OR o.tenant = :tenant)
            AND NOT EXISTS (SELECT 1 FROM outbox e
                             WHERE e.channel = o.channel AND e.line = o.line AND e.n < o.n
                               AND e.delivered_at IS NULL AND e.dead_at IS NULL)
            AND NOT EXISTS (SELECT 1 FROM channel WHERE name = :channel AND stopped_at IS NOT NULL)
          ORDER BY o.due_at, o.n
          LIMIT :most)
RETURNING id, machine, subject_id, seq, n, line, channel, tenant, queue, kind, state, trace, fence, attempts, place, error, created_at, due_at, delivered_at, dead_at

-- name: outbox_delivered
-- No row back means that somebody else took it meanwhile: what they make of it counts.
-- postgres
-- CASE hides from the planner that an index of all that waits would do.
UPDATE outbox SET delivered_at = {now}, error = NULL
  FROM unnest(:id::text[], :fence::bigint[]) AS held(id, fence)
 WHERE outbox.id = held.id AND outbox.fence = held.fence AND held.fence % 1 = 0
   AND CASE WHEN delivered_at IS NULL AND dead_at IS NULL THEN true ELSE false END
RETURNING outbox.id
-- sqlite
UPDATE outbox SET delivered_at = {now}, error = NULL
  FROM {rows:id fence} AS held
 WHERE outbox.id = held.id AND outbox.fence = held.fence AND delivered_at IS NULL AND dead_at IS NULL
RETURNING outbox.id

-- name: outbox_failed
-- Tried again later, or dead after so many failures. What was not its fault spends nothing.
UPDATE outbox SET attempts = attempts + :spent, error = :error, due_at = {now} + :delay_us{micros},
       dead_at = CASE WHEN attempts + :spent >= :most THEN {now} END
 WHERE id = :id AND fence = :fence AND delivered_at IS NULL AND dead_at IS NULL
RETURNING dead_at

-- name: outbox_waiting
-- The messages of each channel that wait: how many, and for how long the oldest, in microseconds.
-- postgres
SELECT channel, count(*), (extract(epoch FROM {now} - min(created_at)) * 1000000)::bigint
  FROM outbox
 WHERE delivered_at IS NULL AND dead_at IS NULL
 GROUP BY channel
-- sqlite
SELECT channel, count(*), {now} - min(created_at)
  FROM outbox
 WHERE delivered_at IS NULL AND dead_at IS NULL
 GROUP BY channel

-- name: outbox_coming
-- When each of these channels has something to deliver: microseconds until then, negative when overdue.
-- postgres
SELECT name, (SELECT (extract(epoch FROM due_at - {now}) * 1000000)::bigint
                FROM outbox WHERE channel = channel.name AND delivered_at IS NULL AND dead_at IS NULL
                 AND (channel.tenant = '*' OR outbox.tenant = channel.tenant)
               ORDER BY due_at LIMIT 1)
  FROM channel
 WHERE name = ANY (:name::text[]) AND stopped_at IS NULL
-- sqlite
SELECT name, (SELECT due_at - {now}
                FROM outbox WHERE channel = channel.name AND delivered_at IS NULL AND dead_at IS NULL
                 AND (channel.tenant = '*' OR outbox.tenant = channel.tenant)
               ORDER BY due_at LIMIT 1)
  FROM channel
 WHERE name IN (SELECT value FROM json_each(:name)) AND stopped_at IS NULL

-- name: outbox_offered
-- postgres
SELECT id, machine, subject_id::text, seq, n, line::text, channel, tenant, queue, kind, state, trace, fence, attempts, place, error, created_at, due_at, delivered_at, dead_at
  FROM outbox
 WHERE channel = :channel AND place > :after AND delivered_at IS NULL AND dead_at IS NULL AND (:tenant::text IS NULL OR tenant = :tenant)
   AND (:queues::text IS NULL OR queue IN (SELECT jsonb_array_elements_text(:queues::text::jsonb)))
 ORDER BY place
 LIMIT :most
-- sqlite
SELECT id, machine, subject_id, seq, n, line, channel, tenant, queue, kind, state, trace, fence, attempts, place, error, created_at, due_at, delivered_at, dead_at
  FROM outbox
 WHERE channel = :channel AND place > :after AND delivered_at IS NULL AND dead_at IS NULL AND (:tenant IS NULL OR tenant = :tenant)
   AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
 ORDER BY place
 LIMIT :most

-- name: outbox_place
UPDATE outbox SET place = :last + fresh.k
  FROM (SELECT id, row_number() OVER (ORDER BY n) AS k
          FROM outbox
         WHERE channel = :channel AND place IS NULL AND delivered_at IS NULL AND dead_at IS NULL
         ORDER BY n
         LIMIT :most) AS fresh
 WHERE outbox.id = fresh.id
RETURNING place

-- name: outbox_ack
-- postgres
UPDATE outbox SET delivered_at = {now}, dead_at = NULL, error = NULL
 WHERE id = ANY (:id::text[]) AND channel = :channel AND delivered_at IS NULL
   AND (:tenant::text IS NULL OR tenant = :tenant)
   AND (:queues::text IS NULL OR queue IN (SELECT jsonb_array_elements_text(:queues::text::jsonb)))
RETURNING id
-- sqlite
UPDATE outbox SET delivered_at = {now}, dead_at = NULL, error = NULL
 WHERE id IN (SELECT value FROM json_each(:id)) AND channel = :channel AND delivered_at IS NULL
   AND (:tenant IS NULL OR tenant = :tenant)
   AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
RETURNING id

-- name: outbox_ack_upto
-- postgres
UPDATE outbox SET delivered_at = {now}, error = NULL
 WHERE channel = :channel AND place <= :place AND delivered_at IS NULL AND dead_at IS NULL AND (:tenant::text IS NULL OR tenant = :tenant)
   AND (:queues::text IS NULL OR queue IN (SELECT jsonb_array_elements_text(:queues::text::jsonb)))
RETURNING id
-- sqlite
UPDATE outbox SET delivered_at = {now}, error = NULL
 WHERE channel = :channel AND place <= :place AND delivered_at IS NULL AND dead_at IS NULL AND (:tenant IS NULL OR tenant = :tenant)
   AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
RETURNING id

-- name: outbox_get
SELECT id, machine, {text:subject_id}, seq, n, {text:line}, channel, tenant, queue, kind, state, trace, fence, attempts, place, error, created_at, due_at, delivered_at, dead_at
  FROM outbox WHERE id = :id

-- name: outbox_failing
-- The oldest of a channel's messages that wait and failed before: how often, and how it failed last.
SELECT attempts, error FROM outbox
 WHERE channel = :channel AND delivered_at IS NULL AND dead_at IS NULL AND error IS NOT NULL
 ORDER BY n LIMIT 1

-- name: outbox_next
-- When the first of a channel's messages that wait is due, and the time now.
SELECT min(due_at), {now} FROM outbox WHERE channel = :channel AND delivered_at IS NULL AND dead_at IS NULL

-- name: outbox_list
-- A page of messages, newest first: those that wait, were delivered, are dead, or all.
-- postgres
SELECT id, machine, subject_id::text, seq, n, line::text, channel, tenant, queue, kind, state, trace, fence, attempts, place, error, created_at, due_at, delivered_at, dead_at
  FROM outbox
 WHERE channel = :channel AND n < :before
   AND CASE :state::text WHEN 'waiting' THEN delivered_at IS NULL AND dead_at IS NULL
                   WHEN 'delivered' THEN delivered_at IS NOT NULL
                   WHEN 'dead' THEN dead_at IS NOT NULL
                   ELSE true END
 ORDER BY n DESC
 LIMIT :most
-- sqlite
SELECT id, machine, subject_id, seq, n, line, channel, tenant, queue, kind, state, trace, fence, attempts, place, error, created_at, due_at, delivered_at, dead_at
  FROM outbox
 WHERE channel = :channel AND n < :before
   AND CASE :state WHEN 'waiting' THEN delivered_at IS NULL AND dead_at IS NULL
                   WHEN 'delivered' THEN delivered_at IS NOT NULL
                   WHEN 'dead' THEN dead_at IS NOT NULL
                   ELSE true END
 ORDER BY n DESC
 LIMIT :most

-- name: outbox_next_up
-- The messages of a channel that wait, the one that is due first first: along the index of those.
SELECT id, machine, {text:subject_id}, seq, n, {text:line}, channel, tenant, queue, kind, state, trace, fence, attempts, place, error, created_at, due_at, delivered_at, dead_at
  FROM outbox
 WHERE channel = :channel AND delivered_at IS NULL AND dead_at IS NULL
 ORDER BY due_at
 LIMIT :most

-- name: outbox_dead
-- The dead messages of a channel, newest first: along the index of those.
SELECT id, machine, {text:subject_id}, seq, n, {text:line}, channel, tenant, queue, kind, state, trace, fence, attempts, place, error, created_at, due_at, delivered_at, dead_at
  FROM outbox
 WHERE channel = :channel AND dead_at IS NOT NULL
 ORDER BY n DESC
 LIMIT :most

-- name: outbox_retry
-- Back to life: dead ones of a channel, or those that were named. They are offered at a new place.
-- postgres
UPDATE outbox SET dead_at = NULL, attempts = 0, place = NULL, due_at = {now}
 WHERE channel = :channel AND dead_at IS NOT NULL AND (:id::text[] IS NULL OR id = ANY (:id::text[]))
RETURNING id
-- sqlite
UPDATE outbox SET dead_at = NULL, attempts = 0, place = NULL, due_at = {now}
 WHERE channel = :channel AND dead_at IS NOT NULL AND (:id IS NULL OR id IN (SELECT value FROM json_each(:id)))
RETURNING id

-- name: outbox_redeliver
-- Delivered or dead ones that were named are delivered once more: the same message, under the same id.
-- postgres
UPDATE outbox
   SET dead_at = NULL, delivered_at = NULL, error = NULL, attempts = 0, place = NULL, fence = fence + 1, due_at = {now}
 WHERE channel = :channel AND id = ANY (:id::text[]) AND (delivered_at IS NOT NULL OR dead_at IS NOT NULL)
RETURNING id
-- sqlite
UPDATE outbox
   SET dead_at = NULL, delivered_at = NULL, error = NULL, attempts = 0, place = NULL, fence = fence + 1, due_at = {now}
 WHERE channel = :channel AND id IN (SELECT value FROM json_each(:id)) AND (delivered_at IS NOT NULL OR dead_at IS NOT NULL)
RETURNING id

-- name: outbox_give_up
-- What nobody took within the time that failures are kept must not keep its job for ever.
-- postgres
-- Found by its age, and then by where it lies; CASE hides from the planner that another index would
-- do too.
UPDATE outbox SET dead_at = {now}, error = coalesce(error, 'nobody took it in time')
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM outbox
                          WHERE delivered_at IS NULL AND dead_at IS NULL
                            AND created_at <= {now} - :keep_us{micros}
                          ORDER BY created_at LIMIT :most))
   AND CASE WHEN delivered_at IS NULL AND dead_at IS NULL THEN true ELSE false END
RETURNING id
-- sqlite
UPDATE outbox SET dead_at = {now}, error = coalesce(error, 'nobody took it in time')
 WHERE id IN (SELECT id FROM outbox
               WHERE delivered_at IS NULL AND dead_at IS NULL AND created_at <= {now} - :keep_us{micros}
               ORDER BY created_at LIMIT :most)
   AND delivered_at IS NULL AND dead_at IS NULL
RETURNING id

-- name: message_jobs
-- The jobs of a run in their order, with the batches within it, and about how large each is in a message.
-- postgres
SELECT id::text, size, batch
  FROM (SELECT id, step, ordinal, 400 + coalesce(length(result), 0) + coalesce(octet_length(error), 0) AS size,
               false AS batch
          FROM job
         WHERE run_id = :id AND (state = 'RUNNING' OR state <> 'RUNNING')
         UNION ALL
        SELECT id, 0, ordinal, 400 + coalesce(length(report), 0), true FROM run WHERE parent_id = :id) AS items
 ORDER BY step, ordinal, items.id
 LIMIT :most
-- sqlite
SELECT id, size, batch
  FROM (SELECT id, step, ordinal,
               400 + coalesce(length(result), 0) + coalesce(length(CAST(error AS BLOB)), 0) AS size,
               false AS batch
          FROM job
         WHERE run_id = :id
         UNION ALL
        SELECT id, 0, ordinal, 400 + coalesce(length(report), 0), true FROM run WHERE parent_id = :id) AS items
 ORDER BY step, ordinal, id
 LIMIT :most

-- name: message_worker
SELECT worker_id, records_processed FROM worker_runs WHERE id = :id

-- name: outbox_signals
-- B's messages of a run: its partitions' and its consolidation's.
SELECT o.id, o.machine, {text:o.subject_id}, o.seq, o.n, {text:o.line}, o.channel, o.tenant, o.queue, o.kind, o.state, o.trace, o.fence, o.attempts, o.place, o.error, o.created_at, o.due_at, o.delivered_at, o.dead_at
  FROM outbox o JOIN job ON job.id = o.subject_id
  JOIN step ON step.run_id = job.run_id AND step.number = job.step
 WHERE o.machine = 'job' AND job.run_id = :run_id AND step.role = 'partition'
   AND (job.state = 'RUNNING' OR job.state <> 'RUNNING')
 UNION ALL
SELECT id, machine, {text:subject_id}, seq, n, {text:line}, channel, tenant, queue, kind, state, trace, fence, attempts, place, error, created_at, due_at, delivered_at, dead_at
  FROM outbox
 WHERE machine = 'run' AND subject_id = :run_id AND state = 'RUNNING'
 ORDER BY 5
