INSERT INTO run (id, kind, kind_version, state, move, actor, payload, codec, policy, queue, priority,
                 tenant, unique_key, params_key, tags, trace, channel, mode, parent_id, rerun_of, resumes,
                 watermark_before, deadline_at, due_at, created_at)
VALUES (:id, :kind, :kind_version, :state, 'create', :actor, :payload, :codec, :policy, :queue,
        :priority, :tenant, :unique_key, :params_key, :tags, :trace, :channel, :mode, :parent_id,
        :rerun_of, :resumes, :watermark_before,
        {now} + :deadline_us{micros}, {now} + :hold_us{micros}, {now})
RETURNING id
