-- The jobs of runs by step and state. What is final is taken from the counters of the steps, so that
-- looking at a run does not cost more the longer it has been running.
SELECT run_id::text, step, state, count(*) FROM job
 WHERE run_id = ANY (ARRAY(SELECT unnest(:id::uuid[]))) AND state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED', 'RETRYING')
 GROUP BY run_id, step, state
UNION ALL
SELECT run_id::text, step, 'RUNNING', count(*) FROM job
 WHERE run_id = ANY (ARRAY(SELECT unnest(:id::uuid[]))) AND state = 'RUNNING'
 GROUP BY run_id, step
UNION ALL
SELECT run_id::text, step, 'SUCCEEDED', sum(succeeded)::bigint FROM step_count
 WHERE run_id = ANY (ARRAY(SELECT unnest(:id::uuid[])))
 GROUP BY run_id, step HAVING sum(succeeded) > 0
UNION ALL
SELECT run_id::text, step, 'FAILED', sum(failed)::bigint FROM step_count
 WHERE run_id = ANY (ARRAY(SELECT unnest(:id::uuid[])))
 GROUP BY run_id, step HAVING sum(failed) > 0
UNION ALL
SELECT run_id::text, step, 'CANCELLED', sum(cancelled)::bigint FROM step_count
 WHERE run_id = ANY (ARRAY(SELECT unnest(:id::uuid[])))
 GROUP BY run_id, step HAVING sum(cancelled) > 0
