-- Jobs as they are created and submitted.

-- name: job_create
-- postgres
-- Arrays carry what differs between the jobs; all else they share. Workers that rest are told, once
-- for the whole statement; nobody is told when none rests, because notifying serialises commits.
WITH created AS (
INSERT INTO job (id, payload, ordinal, {columns:pinned}, state, move, actor, detail, due_at, delay_us,
                 deadline_at, start_by, codec, tags, tenant, limit_key, units, trace, channel, parent_id,
                 rerun_of, run_id, step, created_at)
SELECT t.id, t.payload, t.ordinal, {columns:pinned :},
       CASE WHEN :state = 'QUEUED' AND (SELECT transport FROM queue WHERE queue.name = :queue) <> 'store'
            THEN 'READY' ELSE :state END,
       'create', :actor, NULL, coalesce(:due_at::timestamptz, {now} + :delay_us::bigint{micros}),
       CASE WHEN :state = 'WAITING' AND :due_at::timestamptz IS NULL THEN :delay_us::bigint END,
       {now} + :deadline_us::bigint{micros}, {now} + :start_within_us::bigint{micros},
       :codec, :tags::text::jsonb, :tenant, t.limit_key, :units, :trace, :channel,
       :parent_id, :rerun_of, :run_id, :step, {now}
  FROM unnest(:id::uuid[], :payload::bytea[], :ordinal::bigint[], :limit_key::text[])
       AS t (id, payload, ordinal, limit_key)
)
SELECT pg_notify({channel}, :queue)
 WHERE :state = 'QUEUED' AND EXISTS (SELECT 1 FROM worker WHERE state IN {resting})
-- sqlite
INSERT INTO job (id, payload, ordinal, queued_seq, {columns:pinned}, state, move, actor, detail, due_at,
                 deadline_at, start_by, codec, tags, tenant, limit_key, units, trace, channel, parent_id,
                 rerun_of, run_id, step, created_at)
SELECT t.id, t.payload, t.ordinal, {number:t.limit_key :queue :priority}, {columns:pinned :},
       CASE WHEN :state = 'QUEUED' AND (SELECT transport FROM queue WHERE queue.name = :queue) <> 'store'
            THEN 'READY' ELSE :state END,
       'create', :actor, NULL,
       coalesce(:due_at, {now} + :delay_us), {now} + :deadline_us, {now} + :start_within_us,
       :codec, :tags, :tenant, t.limit_key, :units, :trace, :channel, :parent_id, :rerun_of, :run_id, :step,
       {now}
  FROM {rows:id payload* ordinal limit_key} AS t

-- name: job_create_unique
-- One that replaces another may have its place in line, `queued_seq`.
-- postgres
-- Waits for a rival's transaction: no row back means that the rival is there, and committed.
INSERT INTO job (id, payload, ordinal, unique_key, queued_seq, {columns:pinned}, state, move, actor, detail, due_at,
                 delay_us, deadline_at, start_by, codec, tags, tenant, limit_key, units, trace, channel,
                 parent_id, rerun_of, run_id, step, created_at)
VALUES (:id, :payload, :ordinal, :unique_key, coalesce(:queued_seq::bigint, {number::limit_key :queue :priority}),
        {columns:pinned :},
       CASE WHEN :state = 'QUEUED' AND (SELECT transport FROM queue WHERE queue.name = :queue) <> 'store'
            THEN 'READY' ELSE :state END,
        'create', :actor, NULL,
        coalesce(:due_at::timestamptz, {now} + :delay_us::bigint{micros}),
        CASE WHEN :state = 'WAITING' AND :due_at::timestamptz IS NULL THEN :delay_us::bigint END,
        {now} + :deadline_us::bigint{micros}, {now} + :start_within_us::bigint{micros},
        :codec, :tags::text::jsonb, :tenant, :limit_key, :units, :trace, :channel,
        :parent_id, :rerun_of, :run_id, :step, {now})
ON CONFLICT (tenant, kind, unique_key)
  WHERE unique_key IS NOT NULL AND state NOT IN {final}
  DO NOTHING
RETURNING id::text
-- sqlite
-- The trigger refuses a second live one, so it is looked for first (in one write transaction).
INSERT INTO job (id, payload, ordinal, unique_key, queued_seq, {columns:pinned}, state, move, actor,
                 detail, due_at, deadline_at, start_by, codec, tags, tenant, limit_key, units, trace, channel,
                 parent_id, rerun_of, run_id, step, created_at)
SELECT :id, :payload, :ordinal, :unique_key, coalesce(:queued_seq, {number::limit_key :queue :priority}),
       {columns:pinned :},
       CASE WHEN :state = 'QUEUED' AND (SELECT transport FROM queue WHERE queue.name = :queue) <> 'store'
            THEN 'READY' ELSE :state END,
       'create', :actor, NULL,
       coalesce(:due_at, {now} + :delay_us), {now} + :deadline_us, {now} + :start_within_us, :codec,
       :tags, :tenant, :limit_key, :units, :trace, :channel, :parent_id, :rerun_of, :run_id, :step, {now}
 WHERE NOT EXISTS (SELECT 1 FROM job
                    WHERE tenant = :tenant AND kind = :kind AND unique_key = :unique_key
                      AND state NOT IN {final})
RETURNING id

-- name: job_live_by_key
-- The last column: whether it may be replaced.
SELECT {text:id}, queue, state, state IN {unclaimed} AND fence = 0 AND run_id IS NULL FROM job
 WHERE tenant = :tenant AND kind = :kind AND unique_key = :unique_key
   AND state NOT IN {final}

-- name: job_replace
-- Makes room for a newer job with the same key; one that was ever claimed stays, and so does a run's.
-- Tells when it would have started: NULL, as soon as it can; from the journal, whether it was held; and its place, if
-- it was in the line that the newer one joins. Under an ordered key that joins the end: it was submitted later.
UPDATE job
   SET state = 'CANCELLED', move = 'cancel', version = version + 1,
       actor = :actor, detail = :reason, cancel_reason = :reason, finished_at = {now}
 WHERE tenant = :tenant AND kind = :kind AND unique_key = :unique_key
   AND state NOT IN {final} AND state IN {unclaimed} AND fence = 0 AND run_id IS NULL
RETURNING {text:id}, CASE WHEN due_at > {now} THEN due_at END,
          EXISTS (SELECT 1 FROM journal
                   WHERE subject_id = job.id AND machine = 'job' AND seq = job.version - 1
                     AND to_state = 'CREATED'),
          CASE WHEN job.queue = :queue AND job.priority = :priority AND NOT {ordered::limit_key}
                    AND EXISTS (SELECT 1 FROM journal
                                 WHERE subject_id = job.id AND machine = 'job' AND seq = job.version - 1
                                   AND to_state IN {lined_up})
               THEN queued_seq END

-- name: job_standing
-- postgres
SELECT id::text, state FROM job WHERE id = ANY(:id::uuid[])
-- sqlite
SELECT id, state FROM job WHERE id IN (SELECT value FROM json_each(:id))

-- name: job_create_in_steps
-- Creates jobs as their steps have it pinned: gated, sleeping or queued as each stands now.
-- postgres
-- Workers that rest are told, as with any other job.
WITH given AS MATERIALIZED (
  SELECT * FROM unnest(:id::uuid[], :run_id::uuid[], :step::integer[], :parent_id::uuid[],
                       :ordinal::bigint[], :codec::text[], :payload::bytea[], :limit_key::text[])
         WITH ORDINALITY AS t (id, run_id, step, parent_id, ordinal, codec, payload, limit_key, place)
), pinned AS MATERIALIZED (
  SELECT s.*, r.tenant, r.trace,
         (SELECT transport FROM queue WHERE queue.name = s.queue) AS transport
    FROM (SELECT DISTINCT run_id, step FROM given) t
   CROSS JOIN LATERAL (SELECT * FROM step
                        WHERE step.run_id = t.run_id AND step.number = t.step OFFSET 0) s
   CROSS JOIN LATERAL (SELECT tenant, trace FROM run WHERE run.id = t.run_id OFFSET 0) r
), created AS (
INSERT INTO job (id, {columns:pinned}, state, move, actor, codec, payload, limit_key, deadline_at, start_by,
                 tenant, trace, channel, parent_id, run_id, step, ordinal, due_at, delay_us, created_at)
SELECT t.id, {columns:pinned s.},
       CASE WHEN s.gated AND NOT s.opened THEN 'GATED' WHEN s.poll_us IS NOT NULL THEN 'WAITING'
            WHEN s.transport <> 'store' THEN 'READY' ELSE 'QUEUED' END,
       'create', :actor, t.codec, t.payload, t.limit_key,
       {now} + s.deadline_us{micros}, {now} + s.start_within_us{micros},
       s.tenant, s.trace, s.channel, t.parent_id, t.run_id, t.step, t.ordinal,
       CASE WHEN s.gated AND NOT s.opened THEN NULL ELSE {now} + s.poll_us{micros} END,
       CASE WHEN s.gated AND NOT s.opened THEN NULL ELSE s.poll_us END, {now}
  FROM given t JOIN pinned s ON s.run_id = t.run_id AND s.number = t.step
 ORDER BY t.place
)
SELECT pg_notify({channel}, '') WHERE EXISTS (SELECT 1 FROM worker WHERE state IN {resting})
-- sqlite
INSERT INTO job (id, {columns:pinned}, state, move, actor, codec, payload, limit_key, deadline_at, start_by,
                 tenant, trace, channel, parent_id, run_id, step, ordinal, due_at, created_at, queued_seq)
SELECT t.id, {columns:pinned s.},
       CASE WHEN s.gated AND NOT s.opened THEN 'GATED' WHEN s.poll_us IS NOT NULL THEN 'WAITING'
            WHEN (SELECT transport FROM queue WHERE queue.name = s.queue) <> 'store' THEN 'READY'
            ELSE 'QUEUED' END,
       'create', :actor, t.codec, t.payload, t.limit_key,
       {now} + s.deadline_us, {now} + s.start_within_us,
       r.tenant, r.trace, s.channel, t.parent_id, t.run_id, t.step, t.ordinal,
       CASE WHEN s.gated AND NOT s.opened THEN NULL ELSE {now} + s.poll_us END, {now},
       {number:t.limit_key s.queue s.priority}
  FROM {rows:id run_id step parent_id ordinal codec payload* limit_key} AS t
 CROSS JOIN step s ON s.run_id = t.run_id AND s.number = t.step
 CROSS JOIN run r ON r.id = t.run_id

-- name: job_submit
-- Releases a held job; where it goes depends on whether its time has come.
-- postgres
UPDATE job
   SET state = CASE WHEN due_at > {now} THEN 'WAITING'
                    WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'submit',
       version = version + 1, actor = :actor, detail = NULL, queued_seq = nextval('queued_seq')
 WHERE id = ANY(:id::uuid[]) AND state = 'CREATED'
RETURNING {text:id}
-- sqlite
UPDATE job
   SET state = CASE WHEN due_at > {now} THEN 'WAITING'
                    WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = 'submit',
       version = version + 1, actor = :actor, detail = NULL,
       queued_seq = {number:job.limit_key job.queue job.priority}
 WHERE id IN (SELECT value FROM json_each(:id)) AND state = 'CREATED'
RETURNING id
