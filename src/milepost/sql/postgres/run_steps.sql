-- How each step of runs stands, counted now: a new statement sees what others have committed. With
-- it the first step that outputs are for whose producer has ended and that are not jobs yet.
SELECT s.run_id::text, s.number, s.name, s.role, s.gated, s.opened, s.fail_fast, s.tolerance,
       (SELECT min(p.first_step) FROM publication p
         WHERE p.run_id = s.run_id AND p.published < p.total AND NOT p.withdrawn),
       coalesce(c.open, 0), coalesce(c.succeeded, 0), coalesce(c.failed, 0), coalesce(c.cancelled, 0)
  FROM step s
  LEFT JOIN LATERAL (
       SELECT sum(open) AS open, sum(succeeded) AS succeeded, sum(failed) AS failed,
              sum(cancelled) AS cancelled
         FROM step_count WHERE run_id = s.run_id AND step = s.number) c ON true
 WHERE s.run_id = ANY (ARRAY(SELECT unnest(:id::uuid[])))
 ORDER BY s.run_id, s.number
