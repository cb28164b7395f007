-- What a job that goes on with the steps of others knows of one step: the newest record counts. No
-- row back means the lease was lost.
WITH RECURSIVE older (id, before, depth) AS (
  SELECT id, rerun_of, 0 FROM job
   WHERE id = :id AND fence = :fence AND state = 'RUNNING'
  UNION ALL
  SELECT job.id, CASE WHEN job.origin_id IS NOT NULL THEN job.rerun_of END, older.depth + 1
    FROM older JOIN job ON job.id = older.before
)
SELECT durable_step.name, durable_step.result
  FROM older LEFT JOIN durable_step ON durable_step.job_id = older.id AND durable_step.name = :name
 ORDER BY CASE WHEN durable_step.name IS NULL THEN 1 ELSE 0 END, older.depth
 LIMIT 1
