-- Steps whose counters are not what their jobs say. Finished jobs may have left by retention, so there
-- may be fewer of them than were counted, never more.
SELECT {text:c.run_id}, c.step, c.open, coalesce(j.open, 0),
       c.succeeded, coalesce(j.succeeded, 0), c.failed, coalesce(j.failed, 0),
       c.cancelled, coalesce(j.cancelled, 0)
  FROM (SELECT run_id, step, sum(open) AS open, sum(succeeded) AS succeeded, sum(failed) AS failed,
               sum(cancelled) AS cancelled
          FROM step_count GROUP BY run_id, step) c
  LEFT JOIN (SELECT run_id, step,
                    count(*) FILTER (WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')) AS open,
                    count(*) FILTER (WHERE state = 'SUCCEEDED') AS succeeded,
                    count(*) FILTER (WHERE state = 'FAILED') AS failed,
                    count(*) FILTER (WHERE state = 'CANCELLED') AS cancelled
               FROM job WHERE run_id IS NOT NULL GROUP BY run_id, step) j
    ON j.run_id = c.run_id AND j.step = c.step
 WHERE c.open <> coalesce(j.open, 0) OR c.succeeded < coalesce(j.succeeded, 0)
    OR c.failed < coalesce(j.failed, 0) OR c.cancelled < coalesce(j.cancelled, 0)
 ORDER BY c.run_id, c.step
