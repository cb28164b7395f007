-- each: marks a page as consolidated, by the attempt that took it.
UPDATE page SET pending = 0, keys = NULL, taken_by = NULL, taken_fence = NULL
 WHERE root_id = :root_id AND ordinal = :ordinal AND number = :number
   AND taken_by = :id AND taken_fence = :fence
RETURNING number
