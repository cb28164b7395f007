-- Back to life: dead ones of a channel, or those that were named. They are offered at a new place.
UPDATE outbox SET dead_at = NULL, attempts = 0, place = NULL, due_at = {now}
 WHERE channel = :channel AND dead_at IS NOT NULL AND (:id::text[] IS NULL OR id = ANY (:id::text[]))
RETURNING id
