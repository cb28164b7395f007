-- The jobs that run these again, one after the other, the newest last.
WITH RECURSIVE newer (first_id, id, depth) AS (
  SELECT t.id, found.id, 1
    FROM unnest(:id::uuid[]) AS t (id)
   CROSS JOIN LATERAL (SELECT job.id FROM job WHERE job.rerun_of = t.id OFFSET 0) found
  UNION ALL
  SELECT newer.first_id, found.id, newer.depth + 1
    FROM newer
   CROSS JOIN LATERAL (SELECT job.id FROM job WHERE job.rerun_of = newer.id OFFSET 0) found
)
SELECT first_id::text, id::text FROM newer ORDER BY depth, newer.id
