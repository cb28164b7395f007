UPDATE pipeline_run
   SET counted = :counted, calls = :calls, plan = :plan, planned_at = {now}
 WHERE run_id = :run_id AND planned_at IS NULL
RETURNING planned_at
