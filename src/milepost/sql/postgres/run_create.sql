-- Waits for a rival's transaction: no row back means that the rival is there, and committed.
INSERT INTO run (id, kind, kind_version, state, move, actor, payload, codec, policy, queue, priority,
                 tenant, unique_key, params_key, tags, trace, channel, mode, parent_id, rerun_of, resumes,
                 watermark_before, deadline_at, due_at, created_at)
VALUES (:id, :kind, :kind_version, :state, 'create', :actor, :payload, :codec, :policy, :queue,
        :priority, :tenant, :unique_key, :params_key, :tags::jsonb, :trace, :channel, :mode, :parent_id,
        :rerun_of, :resumes, :watermark_before::timestamptz,
        {now} + :deadline_us::bigint{micros}, {now} + :hold_us::bigint{micros}, {now})
ON CONFLICT (tenant, kind, unique_key)
  WHERE unique_key IS NOT NULL AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
  DO NOTHING
RETURNING id::text
