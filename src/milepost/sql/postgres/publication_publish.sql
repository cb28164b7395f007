-- Turns staged outputs into jobs of their steps: gated, sleeping or queued as the step stands now.
-- In a run that is stopping they are not wanted any more.
-- (OFFSET 0 and MATERIALIZED keep the planner from reading all steps and runs into a hash.)
WITH given AS MATERIALIZED (
  SELECT * FROM unnest(:producer_id::uuid[], :fence::bigint[], :run_id::uuid[], :low::bigint[],
                       :high::bigint[]) AS t (producer_id, fence, run_id, low, high)
), pinned AS MATERIALIZED (
  SELECT s.*, r.tenant, r.trace
    FROM (SELECT DISTINCT run_id FROM given) t
   CROSS JOIN LATERAL (SELECT * FROM step WHERE step.run_id = t.run_id OFFSET 0) s
   CROSS JOIN LATERAL (SELECT tenant, trace FROM run WHERE run.id = t.run_id OFFSET 0) r
)
INSERT INTO job (id, kind, kind_version, queue, priority, state, move, actor, codec, payload, retries, poll_limit, poison_limit, timeout_us, deadline_at, start_by, policy, tenant, trace, parent_id, run_id, step, ordinal, due_at, delay_us, created_at)
SELECT o.job_id, s.kind, s.kind_version, s.queue, s.priority,
       CASE WHEN s.gated AND NOT s.opened THEN 'GATED' WHEN s.poll_us IS NOT NULL THEN 'WAITING'
            ELSE 'QUEUED' END,
       'create', :actor, o.codec, o.payload, s.retries, s.poll_limit, s.poison_limit, s.timeout_us,
       {now} + s.deadline_us{micros}, {now} + s.start_within_us{micros},
       s.policy, s.tenant, s.trace, o.producer_id, s.run_id, s.number, o.seq,
       CASE WHEN s.gated AND NOT s.opened THEN NULL ELSE {now} + s.poll_us{micros} END,
       CASE WHEN s.gated AND NOT s.opened THEN NULL ELSE s.poll_us END, {now}
  FROM given t
 CROSS JOIN LATERAL (SELECT * FROM staged o
                      WHERE o.producer_id = t.producer_id AND o.fence = t.fence AND o.seq >= t.low
                        AND o.seq < t.high
                     OFFSET 0) o
  JOIN pinned s ON s.run_id = t.run_id AND s.number = o.step
 ORDER BY o.producer_id, o.seq
