-- A page of messages, newest first: those that wait, were delivered, are dead, or all.
SELECT id, machine, subject_id, seq, n, channel, tenant, queue, kind, state, trace, fence, attempts, place, error, created_at, due_at, delivered_at, dead_at
  FROM outbox
 WHERE channel = :channel AND n < :before AND (:tenant IS NULL OR tenant = :tenant)
   AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
   AND CASE :state WHEN 'waiting' THEN delivered_at IS NULL AND dead_at IS NULL
                   WHEN 'delivered' THEN delivered_at IS NOT NULL
                   WHEN 'dead' THEN dead_at IS NOT NULL
                   ELSE true END
 ORDER BY n DESC
 LIMIT :most
