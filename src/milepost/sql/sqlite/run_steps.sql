-- each: how each step of a run stands, counted now, and the first step that outputs are for whose
-- producer has ended and that are not jobs yet.
SELECT s.run_id, s.number, s.name, s.role, s.gated, s.opened, s.fail_fast, s.tolerance,
       (SELECT min(p.first_step) FROM publication p
         WHERE p.run_id = s.run_id AND p.published < p.total AND NOT p.withdrawn),
       coalesce(sum(c.open), 0), coalesce(sum(c.succeeded), 0), coalesce(sum(c.failed), 0),
       coalesce(sum(c.cancelled), 0)
  FROM step s LEFT JOIN step_count c ON c.run_id = s.run_id AND c.step = s.number
 WHERE s.run_id = :id
 GROUP BY s.number, s.name, s.role, s.gated, s.opened, s.fail_fast, s.tolerance
 ORDER BY s.number
