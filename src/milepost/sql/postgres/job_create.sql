-- Arrays carry what differs between the jobs; all else they share.
INSERT INTO job (id, payload, ordinal, kind, kind_version, queue, priority, state, move, actor, detail, due_at, deadline_at, start_by, timeout_us, retries, poll_limit, poison_limit, policy, codec, tags, tenant, limit_key, trace, channel, parent_id, rerun_of, run_id, step, created_at)
SELECT t.id, t.payload, t.ordinal, :kind, :kind_version, :queue, :priority, :state, 'create', :actor,
       NULL, coalesce(:due_at::timestamptz, {now} + :delay_us::bigint{micros}),
       {now} + :deadline_us::bigint{micros}, {now} + :start_within_us::bigint{micros},
       :timeout_us, :retries, :poll_limit, :poison_limit, :policy, :codec, :tags::jsonb, :tenant,
       :limit_key, :trace, :channel, :parent_id, :rerun_of, :run_id, :step, {now}
  FROM unnest(:id::uuid[], :payload::bytea[], :ordinal::bigint[]) AS t (id, payload, ordinal)
