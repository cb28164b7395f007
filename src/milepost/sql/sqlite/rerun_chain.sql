-- A job, those it runs again and those that run it again, the oldest first.
WITH RECURSIVE older (id, rerun_of, depth) AS (
  SELECT id, rerun_of, 0 FROM job WHERE id = :id
  UNION ALL
  SELECT job.id, job.rerun_of, older.depth - 1 FROM older JOIN job ON job.id = older.rerun_of
), newer (id, depth) AS (
  SELECT id, 1 FROM job WHERE rerun_of = :id
  UNION ALL
  SELECT job.id, newer.depth + 1 FROM newer JOIN job ON job.rerun_of = newer.id
), line (id, depth) AS (
  SELECT id, depth FROM older
  UNION ALL
  SELECT id, depth FROM newer
)
SELECT id FROM line ORDER BY depth, line.id
