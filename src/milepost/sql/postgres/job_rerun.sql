-- Creates jobs that run finished ones again: on their own, or held in a run that resumes theirs. A
-- fresh one has neither key nor steps of those before it. Workers that rest are told.
-- (OFFSET 0 keeps the planner from reading all jobs into a hash.)
WITH again AS (
INSERT INTO job (id, kind, kind_version, queue, priority, state, move, actor, detail, deadline_at,
                 start_by, timeout_us, retries, poll_limit, poison_limit, policy, codec, payload, tags,
                 tenant, limit_key, trace, channel, parent_id, rerun_of, origin_id, run_id, step,
                 ordinal, created_at)
SELECT t.new_id, old.kind, old.kind_version, old.queue, old.priority, :state, 'create', :actor, NULL,
       {now} + (old.deadline_at - old.created_at), {now} + (old.start_by - old.created_at),
       old.timeout_us, old.retries, old.poll_limit, old.poison_limit, old.policy, old.codec,
       old.payload, old.tags, old.tenant, old.limit_key, coalesce(:trace, old.trace), old.channel,
       old.parent_id, old.id, CASE WHEN NOT :fresh::boolean THEN coalesce(old.origin_id, old.id) END,
       :run_id, old.step, old.ordinal, {now}
  FROM unnest(:old_id::uuid[], :new_id::uuid[]) AS t (old_id, new_id)
 CROSS JOIN LATERAL (SELECT * FROM job WHERE job.id = t.old_id OFFSET 0) old
 ORDER BY t.new_id
RETURNING queue
)
SELECT pg_notify({channel}, queue) FROM (SELECT DISTINCT queue FROM again) AS told
 WHERE :state = 'QUEUED' AND EXISTS (SELECT 1 FROM worker WHERE state = 'IDLE')
