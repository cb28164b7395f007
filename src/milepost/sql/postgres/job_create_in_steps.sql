-- Creates jobs as their steps have it pinned: gated, sleeping or queued as each stands now; workers
-- that rest are told, as with any other job.
WITH born AS (
INSERT INTO job (id, kind, kind_version, queue, priority, state, move, actor, codec, payload, retries, poll_limit, poison_limit, timeout_us, deadline_at, start_by, policy, tenant, trace, parent_id, run_id, step, ordinal, due_at, created_at)
SELECT t.id, s.kind, s.kind_version, s.queue, s.priority,
       CASE WHEN s.gated AND NOT s.opened THEN 'GATED' WHEN s.poll_us IS NOT NULL THEN 'WAITING'
            ELSE 'QUEUED' END,
       'create', :actor, t.codec, t.payload, s.retries, s.poll_limit, s.poison_limit, s.timeout_us,
       {now} + s.deadline_us{micros}, {now} + s.start_within_us{micros},
       s.policy, r.tenant, r.trace, t.parent_id, t.run_id, t.step, t.ordinal,
       CASE WHEN s.gated AND NOT s.opened THEN NULL ELSE {now} + s.poll_us{micros} END, {now}
  FROM unnest(:id::uuid[], :run_id::uuid[], :step::integer[], :parent_id::uuid[], :ordinal::bigint[],
              :codec::text[], :payload::bytea[])
       WITH ORDINALITY AS t (id, run_id, step, parent_id, ordinal, codec, payload, place)
  JOIN step s ON s.run_id = t.run_id AND s.number = t.step
  JOIN run r ON r.id = t.run_id
 ORDER BY t.place
)
SELECT pg_notify('milepost', '') WHERE EXISTS (SELECT 1 FROM worker WHERE state = 'IDLE')
