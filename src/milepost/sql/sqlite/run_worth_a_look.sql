-- each: whether a run whose job just ended may have come to a gate, a failure or an end.
SELECT DISTINCT c.run_id
  FROM step_count c
  JOIN step s ON s.run_id = c.run_id AND s.number = c.step
  JOIN run r ON r.id = c.run_id
 WHERE c.run_id = :run_id AND c.step = :step
   AND ((c.open = 0 AND c.succeeded + c.failed + c.cancelled > 0)
        OR (s.fail_fast AND c.failed + c.cancelled > 0) OR r.state = 'STOPPING')
