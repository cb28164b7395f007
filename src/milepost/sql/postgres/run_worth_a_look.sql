-- Which of the runs whose jobs just ended may have come to a gate, a failure or an end.
-- A counter that never counted an end is none of theirs.
-- (`% 1 = 0` is always true: it makes the planner expect few rows, and look each up by its id.)
SELECT DISTINCT c.run_id::text
  FROM unnest(:run_id::uuid[], :step::integer[]) AS t (run_id, step)
  JOIN step_count c ON c.run_id = t.run_id AND c.step = t.step
  JOIN step s ON s.run_id = c.run_id AND s.number = c.step
  JOIN run r ON r.id = c.run_id
 WHERE t.step % 1 = 0
   AND ((c.open = 0 AND c.succeeded + c.failed + c.cancelled > 0)
        OR (s.fail_fast AND c.failed + c.cancelled > 0) OR r.state = 'STOPPING')
