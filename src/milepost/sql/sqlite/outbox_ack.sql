UPDATE outbox SET delivered_at = {now}, dead_at = NULL, error = NULL
 WHERE id IN (SELECT value FROM json_each(:id)) AND channel = :channel AND delivered_at IS NULL
   AND (:tenant IS NULL OR tenant = :tenant)
   AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
RETURNING id
