SELECT id, machine, subject_id::text, seq, n, channel, tenant, queue, kind, state, trace, fence, attempts, place, error, created_at, due_at, delivered_at, dead_at
  FROM outbox
 WHERE channel = :channel AND place > :after AND delivered_at IS NULL AND dead_at IS NULL AND (:tenant::text IS NULL OR tenant = :tenant)
   AND (:queues::text IS NULL OR queue IN (SELECT jsonb_array_elements_text(:queues::text::jsonb)))
 ORDER BY place
 LIMIT :most
