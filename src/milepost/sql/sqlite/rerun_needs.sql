-- The open jobs that go on with the steps of this one.
WITH RECURSIVE newer (id, state) AS (
  SELECT id, state FROM job WHERE rerun_of = :id AND origin_id IS NOT NULL
  UNION ALL
  SELECT job.id, job.state
    FROM newer JOIN job ON job.rerun_of = newer.id
   WHERE job.origin_id IS NOT NULL
)
SELECT id FROM newer WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
