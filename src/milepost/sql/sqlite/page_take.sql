-- Takes pages to consolidate that nobody works on. One whose taker does not run any more with that
-- fence is free again (H-67).
UPDATE page SET taken_by = :id, taken_fence = :fence
 WHERE root_id = :root_id AND (ordinal, number) IN (
       SELECT ordinal, number FROM page
        WHERE root_id = :root_id AND pending > 0
          AND (taken_by IS NULL OR (taken_by = :id AND taken_fence <= :fence)
               OR NOT EXISTS (SELECT 1 FROM job WHERE job.id = page.taken_by
                                 AND job.fence = page.taken_fence AND job.state = 'RUNNING'))
        ORDER BY ordinal, number
        LIMIT :most)
RETURNING ordinal, number, keys
