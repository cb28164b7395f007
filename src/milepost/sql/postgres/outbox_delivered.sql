-- No row back means that somebody else took it meanwhile: what they make of it counts.
UPDATE outbox SET delivered_at = {now}, error = NULL
  FROM unnest(:id::text[], :fence::bigint[]) AS held(id, fence)
 WHERE outbox.id = held.id AND outbox.fence = held.fence AND delivered_at IS NULL AND dead_at IS NULL
RETURNING outbox.id
