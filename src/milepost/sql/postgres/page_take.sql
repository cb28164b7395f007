-- Takes pages to consolidate that nobody works on. One whose taker does not run any more with that
-- fence is free again (H-67).
WITH free AS MATERIALIZED (
  SELECT page.root_id, page.ordinal, page.number
    FROM page
   WHERE page.root_id = :root_id::uuid AND page.pending > 0
     AND (page.taken_by IS NULL
          OR (page.taken_by = :id::uuid AND page.taken_fence <= :fence::bigint)
          OR NOT EXISTS (SELECT 1 FROM job WHERE job.id = page.taken_by
                            AND job.fence = page.taken_fence AND job.state = 'RUNNING'))
   ORDER BY page.ordinal, page.number
   LIMIT (SELECT :most::bigint)
     FOR UPDATE SKIP LOCKED
)
UPDATE page SET taken_by = :id::uuid, taken_fence = :fence::bigint
  FROM free
 WHERE page.root_id = free.root_id AND page.ordinal = free.ordinal AND page.number = free.number
RETURNING page.ordinal, page.number, page.keys
