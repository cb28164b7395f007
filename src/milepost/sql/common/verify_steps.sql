-- Steps whose counters are not what their jobs say. Finished jobs may have left by retention, so there
-- may be fewer of them than were counted, never more. Both sides are added up, not joined, so that a
-- job that nobody counts shows too.
SELECT {text:run_id}, step, sum(open), sum(has_open), sum(succeeded), sum(has_succeeded),
       sum(failed), sum(has_failed), sum(cancelled), sum(has_cancelled)
  FROM (SELECT run_id, step, open, 0 AS has_open, succeeded, 0 AS has_succeeded,
               failed, 0 AS has_failed, cancelled, 0 AS has_cancelled
          FROM step_count
         UNION ALL
        SELECT run_id, step,
               0, CASE WHEN state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') THEN 0 ELSE 1 END,
               0, CASE state WHEN 'SUCCEEDED' THEN 1 ELSE 0 END,
               0, CASE state WHEN 'FAILED' THEN 1 ELSE 0 END,
               0, CASE state WHEN 'CANCELLED' THEN 1 ELSE 0 END
          FROM job WHERE run_id IS NOT NULL) AS both_sides
 GROUP BY run_id, step
HAVING sum(open) <> sum(has_open) OR sum(succeeded) < sum(has_succeeded)
    OR sum(failed) < sum(has_failed) OR sum(cancelled) < sum(has_cancelled)
 ORDER BY both_sides.run_id, step
