-- The jobs that run these again, one after the other, the newest last.
WITH RECURSIVE newer (first_id, id, depth) AS (
  SELECT t.value, job.id, 1 FROM json_each(:id) AS t CROSS JOIN job WHERE job.rerun_of = t.value
  UNION ALL
  SELECT newer.first_id, job.id, newer.depth + 1
    FROM newer CROSS JOIN job
   WHERE job.rerun_of = newer.id
)
SELECT first_id, id FROM newer ORDER BY depth, id
