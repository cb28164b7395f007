-- Marks pages as consolidated, by the attempt that took them.
UPDATE page SET pending = 0, keys = NULL, taken_by = NULL, taken_fence = NULL
  FROM unnest(:ordinal::integer[], :number::integer[]) AS i (ordinal, number)
 WHERE page.root_id = :root_id::uuid AND page.ordinal = i.ordinal AND page.number = i.number
   AND page.taken_by = :id::uuid AND page.taken_fence = :fence
RETURNING page.number
