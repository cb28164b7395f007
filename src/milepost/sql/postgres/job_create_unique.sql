-- Waits for a rival's transaction: no row back means that the rival is there, and committed.
INSERT INTO job (id, payload, ordinal, unique_key, kind, kind_version, queue, priority, state, move, actor, detail, due_at, delay_us, deadline_at, start_by, timeout_us, retries, poll_limit, poison_limit, policy, codec, tags, tenant, limit_key, trace, channel, parent_id, rerun_of, run_id, step, created_at)
VALUES (:id, :payload, :ordinal, :unique_key, :kind, :kind_version, :queue, :priority, :state, 'create',
        :actor, NULL, coalesce(:due_at::timestamptz, {now} + :delay_us::bigint{micros}),
        CASE WHEN :state = 'WAITING' AND :due_at::timestamptz IS NULL THEN :delay_us::bigint END,
        {now} + :deadline_us::bigint{micros}, {now} + :start_within_us::bigint{micros},
        :timeout_us, :retries, :poll_limit, :poison_limit, :policy, :codec, :tags::text::jsonb, :tenant,
        :limit_key, :trace, :channel, :parent_id, :rerun_of, :run_id, :step, {now})
ON CONFLICT (tenant, kind, unique_key)
  WHERE unique_key IS NOT NULL AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
  DO NOTHING
RETURNING id::text
