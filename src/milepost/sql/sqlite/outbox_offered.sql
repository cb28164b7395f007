SELECT id, machine, subject_id, seq, n, channel, tenant, queue, kind, state, trace, fence, attempts, place, error, created_at, due_at, delivered_at, dead_at
  FROM outbox
 WHERE channel = :channel AND place > :after AND delivered_at IS NULL AND dead_at IS NULL AND (:tenant IS NULL OR tenant = :tenant)
   AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
 ORDER BY place
 LIMIT :most
