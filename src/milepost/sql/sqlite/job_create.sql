INSERT INTO job (id, payload, ordinal, queued_seq, kind, kind_version, queue, priority, state, move, actor, detail, due_at, deadline_at, start_by, timeout_us, retries, poll_limit, poison_limit, policy, codec, tags, tenant, limit_key, trace, channel, parent_id, rerun_of, run_id, step, created_at)
SELECT t.id, t.payload, t.ordinal, {now}, :kind, :kind_version, :queue, :priority, :state, 'create',
       :actor, NULL, coalesce(:due_at, {now} + :delay_us), {now} + :deadline_us,
       {now} + :start_within_us, :timeout_us, :retries, :poll_limit, :poison_limit, :policy,
       :codec, :tags, :tenant, :limit_key, :trace, :channel, :parent_id, :rerun_of, :run_id, :step,
       {now}
  FROM {rows:id payload* ordinal} AS t
