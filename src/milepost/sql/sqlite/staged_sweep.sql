-- Throws away what nobody will publish: left by failed or lost attempts, or by deleted runs. What a
-- stopped run took back is kept with it: a run that resumes it publishes the rest.
-- It hops through the key from attempt to attempt: one may have staged a million, all wanted.
WITH RECURSIVE attempt (producer_id, fence) AS (
  SELECT * FROM (SELECT producer_id, fence FROM staged
                  WHERE producer_id >= '' ORDER BY producer_id, fence LIMIT 1) AS first
  UNION ALL
  SELECT s.producer_id, s.fence
    FROM attempt JOIN staged AS s
      ON s.rowid = coalesce((SELECT f.rowid FROM staged AS f
                              WHERE f.producer_id = attempt.producer_id AND f.fence > attempt.fence
                              ORDER BY f.producer_id, f.fence LIMIT 1),
                            (SELECT p.rowid FROM staged AS p
                              WHERE p.producer_id > attempt.producer_id
                              ORDER BY p.producer_id, p.fence LIMIT 1))
), unwanted (producer_id, fence) AS (
  SELECT producer_id, fence FROM attempt
   WHERE NOT EXISTS (SELECT 1 FROM job
                      WHERE job.id = attempt.producer_id AND job.fence = attempt.fence
                        AND job.state = 'RUNNING')
     AND NOT EXISTS (SELECT 1 FROM publication AS p
                      WHERE p.producer_id = attempt.producer_id AND p.fence = attempt.fence)
)
DELETE FROM staged WHERE rowid IN (
  SELECT s.rowid FROM unwanted CROSS JOIN staged AS s
   WHERE s.producer_id = unwanted.producer_id AND s.fence = unwanted.fence
   LIMIT :most)
