-- Where the jobs before this one came to, for one that has not saved a cursor of its own yet.
WITH RECURSIVE older (id, before, depth) AS (
  SELECT id, rerun_of, 0 FROM job WHERE id = :id
  UNION ALL
  SELECT job.id, CASE WHEN job.origin_id IS NOT NULL THEN job.rerun_of END, older.depth + 1
    FROM older JOIN job ON job.id = older.before
)
SELECT progress.position
  FROM older JOIN progress ON progress.job_id = older.id
 WHERE progress.saves > 0
 ORDER BY older.depth
 LIMIT 1
