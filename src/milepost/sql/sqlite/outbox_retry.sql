-- Back to life: dead ones of a channel, or those that were named. They are offered at a new place.
UPDATE outbox SET dead_at = NULL, attempts = 0, place = NULL, due_at = {now}
 WHERE channel = :channel AND dead_at IS NOT NULL AND (:id IS NULL OR id IN (SELECT value FROM json_each(:id)))
RETURNING id
