-- each: turns staged outputs into jobs of their steps: gated, sleeping or queued as the step stands
-- now.
INSERT INTO job (id, kind, kind_version, queue, priority, state, move, actor, codec, payload, retries, poll_limit, poison_limit, timeout_us, deadline_at, start_by, policy, tenant, trace, parent_id, run_id, step, ordinal, due_at, created_at, queued_seq)
SELECT o.job_id, s.kind, s.kind_version, s.queue, s.priority,
       CASE WHEN s.gated AND NOT s.opened THEN 'GATED' WHEN s.poll_us IS NOT NULL THEN 'WAITING'
            ELSE 'QUEUED' END,
       'create', :actor, o.codec, o.payload, s.retries, s.poll_limit, s.poison_limit, s.timeout_us,
       {now} + s.deadline_us, {now} + s.start_within_us,
       s.policy, r.tenant, r.trace, o.producer_id, s.run_id, s.number, o.seq,
       CASE WHEN s.gated AND NOT s.opened THEN NULL ELSE {now} + s.poll_us END, {now}, {now}
  FROM staged o
  JOIN step s ON s.run_id = :run_id AND s.number = o.step
  JOIN run r ON r.id = :run_id
 WHERE o.producer_id = :producer_id AND o.fence = :fence AND o.seq >= :low AND o.seq < :high
 ORDER BY o.seq
