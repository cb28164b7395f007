-- Arrays carry what differs between the jobs; all else they share. Workers that rest are told, once
-- for the whole statement; nobody is told when none rests, because notifying serialises commits.
WITH born AS (
INSERT INTO job (id, payload, ordinal, kind, kind_version, queue, priority, state, move, actor, detail,
                 due_at, delay_us, deadline_at, start_by, timeout_us, retries, poll_limit, poison_limit, policy,
                 codec, tags, tenant, limit_key, trace, channel, parent_id, rerun_of, run_id, step,
                 created_at)
SELECT t.id, t.payload, t.ordinal, :kind, :kind_version, :queue, :priority, :state, 'create', :actor,
       NULL, coalesce(:due_at::timestamptz, {now} + :delay_us::bigint{micros}),
       CASE WHEN :state = 'WAITING' AND :due_at::timestamptz IS NULL THEN :delay_us::bigint END,
       {now} + :deadline_us::bigint{micros}, {now} + :start_within_us::bigint{micros},
       :timeout_us, :retries, :poll_limit, :poison_limit, :policy, :codec, :tags::text::jsonb, :tenant,
       :limit_key, :trace, :channel, :parent_id, :rerun_of, :run_id, :step, {now}
  FROM unnest(:id::uuid[], :payload::bytea[], :ordinal::bigint[]) AS t (id, payload, ordinal)
)
SELECT pg_notify({channel}, :queue)
 WHERE :state = 'QUEUED' AND EXISTS (SELECT 1 FROM worker WHERE state IN ('IDLE', 'BACKOFF'))
