-- No row back means that somebody else took it meanwhile: what they make of it counts.
-- (`% 1 = 0` is always true: it makes the planner expect few rows, and look each up by its id; CASE
-- hides from it that an index of all that waits would do.)
UPDATE outbox SET delivered_at = {now}, error = NULL
  FROM unnest(:id::text[], :fence::bigint[]) AS held(id, fence)
 WHERE outbox.id = held.id AND outbox.fence = held.fence AND held.fence % 1 = 0
   AND CASE WHEN delivered_at IS NULL AND dead_at IS NULL THEN true ELSE false END
RETURNING outbox.id
