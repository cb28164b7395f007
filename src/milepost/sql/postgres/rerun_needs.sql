-- The open jobs that go on with the steps of this one.
-- (OFFSET 0 keeps the planner from reading all jobs into a hash.)
WITH RECURSIVE newer (id, state) AS (
  SELECT id, state FROM job WHERE rerun_of = :id AND origin_id IS NOT NULL
  UNION ALL
  SELECT found.id, found.state
    FROM newer
   CROSS JOIN LATERAL (SELECT job.id, job.state FROM job
                        WHERE job.rerun_of = newer.id AND job.origin_id IS NOT NULL OFFSET 0) found
)
SELECT id::text FROM newer WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
