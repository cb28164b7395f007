-- Creates jobs as their steps have it pinned: gated, sleeping or queued as each stands now; workers
-- that rest are told, as with any other job.
-- (OFFSET 0 and MATERIALIZED keep the planner from reading all steps and runs into a hash.)
WITH given AS MATERIALIZED (
  SELECT * FROM unnest(:id::uuid[], :run_id::uuid[], :step::integer[], :parent_id::uuid[],
                       :ordinal::bigint[], :codec::text[], :payload::bytea[])
         WITH ORDINALITY AS t (id, run_id, step, parent_id, ordinal, codec, payload, place)
), pinned AS MATERIALIZED (
  SELECT s.*, r.tenant, r.trace
    FROM (SELECT DISTINCT run_id, step FROM given) t
   CROSS JOIN LATERAL (SELECT * FROM step
                        WHERE step.run_id = t.run_id AND step.number = t.step OFFSET 0) s
   CROSS JOIN LATERAL (SELECT tenant, trace FROM run WHERE run.id = t.run_id OFFSET 0) r
), born AS (
INSERT INTO job (id, kind, kind_version, queue, priority, state, move, actor, codec, payload, retries, poll_limit, poison_limit, timeout_us, deadline_at, start_by, policy, tenant, trace, parent_id, run_id, step, ordinal, due_at, delay_us, created_at)
SELECT t.id, s.kind, s.kind_version, s.queue, s.priority,
       CASE WHEN s.gated AND NOT s.opened THEN 'GATED' WHEN s.poll_us IS NOT NULL THEN 'WAITING'
            ELSE 'QUEUED' END,
       'create', :actor, t.codec, t.payload, s.retries, s.poll_limit, s.poison_limit, s.timeout_us,
       {now} + s.deadline_us{micros}, {now} + s.start_within_us{micros},
       s.policy, s.tenant, s.trace, t.parent_id, t.run_id, t.step, t.ordinal,
       CASE WHEN s.gated AND NOT s.opened THEN NULL ELSE {now} + s.poll_us{micros} END,
       CASE WHEN s.gated AND NOT s.opened THEN NULL ELSE s.poll_us END, {now}
  FROM given t JOIN pinned s ON s.run_id = t.run_id AND s.number = t.step
 ORDER BY t.place
)
SELECT pg_notify({channel}, '') WHERE EXISTS (SELECT 1 FROM worker WHERE state IN ('IDLE', 'BACKOFF'))
