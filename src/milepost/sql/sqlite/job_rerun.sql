-- Creates jobs that run finished ones again: on their own, or held in a run that resumes theirs. A
-- fresh one has neither key nor steps of those before it.
INSERT INTO job (id, queued_seq, kind, kind_version, queue, priority, state, move, actor, detail,
                 deadline_at, start_by, timeout_us, retries, poll_limit, poison_limit, policy, codec,
                 payload, tags, tenant, limit_key, trace, channel, parent_id, rerun_of, origin_id,
                 run_id, step, ordinal, created_at)
SELECT t.new_id, {now}, old.kind, old.kind_version, old.queue, old.priority, :state, 'create', :actor,
       NULL, {now} + (old.deadline_at - old.created_at), {now} + (old.start_by - old.created_at),
       old.timeout_us, old.retries, old.poll_limit, old.poison_limit, old.policy, old.codec,
       old.payload, old.tags, old.tenant, old.limit_key, coalesce(:trace, old.trace), old.channel,
       old.parent_id, old.id, CASE WHEN NOT :fresh THEN coalesce(old.origin_id, old.id) END,
       :run_id, old.step, old.ordinal, {now}
  FROM {rows:old_id new_id} AS t CROSS JOIN job AS old
 WHERE old.id = t.old_id
