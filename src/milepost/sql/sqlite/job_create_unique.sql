-- The trigger refuses a second live one, so it is looked for first (in one write transaction).
INSERT INTO job (id, payload, ordinal, unique_key, queued_seq, kind, kind_version, queue, priority, state, move, actor, detail, due_at, deadline_at, start_by, timeout_us, retries, poll_limit, poison_limit, policy, codec, tags, tenant, limit_key, trace, channel, parent_id, rerun_of, run_id, step, created_at)
SELECT :id, :payload, :ordinal, :unique_key, {now}, :kind, :kind_version, :queue, :priority, :state,
       'create', :actor, NULL, coalesce(:due_at, {now} + :delay_us), {now} + :deadline_us,
       {now} + :start_within_us, :timeout_us, :retries, :poll_limit, :poison_limit, :policy, :codec,
       :tags, :tenant, :limit_key, :trace, :channel, :parent_id, :rerun_of, :run_id, :step, {now}
 WHERE NOT EXISTS (SELECT 1 FROM job
                    WHERE tenant = :tenant AND kind = :kind AND unique_key = :unique_key
                      AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED'))
RETURNING id
