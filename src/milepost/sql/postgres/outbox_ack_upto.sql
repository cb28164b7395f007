UPDATE outbox SET delivered_at = {now}, error = NULL
 WHERE channel = :channel AND place <= :place AND delivered_at IS NULL AND dead_at IS NULL AND (:tenant::text IS NULL OR tenant = :tenant)
   AND (:queues::text IS NULL OR queue IN (SELECT jsonb_array_elements_text(:queues::text::jsonb)))
RETURNING id
