-- The jobs before this one whose steps it goes on with.
WITH RECURSIVE older (id, before, depth) AS (
  SELECT id, rerun_of, 0 FROM job WHERE id = :id AND origin_id IS NOT NULL
  UNION ALL
  SELECT job.id, CASE WHEN job.origin_id IS NOT NULL THEN job.rerun_of END, older.depth + 1
    FROM older JOIN job ON job.id = older.before
)
SELECT {text:id} FROM older WHERE depth > 0
