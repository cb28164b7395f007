UPDATE outbox SET delivered_at = {now}, dead_at = NULL, error = NULL
 WHERE id = ANY (:id::text[]) AND channel = :channel AND delivered_at IS NULL
   AND (:tenant::text IS NULL OR tenant = :tenant)
   AND (:queues::text IS NULL OR queue IN (SELECT jsonb_array_elements_text(:queues::text::jsonb)))
RETURNING id
