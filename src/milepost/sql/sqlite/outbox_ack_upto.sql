UPDATE outbox SET delivered_at = {now}, error = NULL
 WHERE channel = :channel AND place <= :place AND delivered_at IS NULL AND dead_at IS NULL AND (:tenant IS NULL OR tenant = :tenant)
   AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
RETURNING id
