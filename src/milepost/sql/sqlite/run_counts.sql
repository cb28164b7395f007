-- each: the jobs of a run by step and state. What is final is taken from the counters of the steps, so
-- that looking at a run does not cost more the longer it has been running.
SELECT run_id, step, state, count(*) FROM job
 WHERE run_id = :id AND state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED', 'RUNNING', 'RETRYING')
 GROUP BY run_id, step, state
UNION ALL
SELECT run_id, step, 'SUCCEEDED', sum(succeeded) FROM step_count WHERE run_id = :id
 GROUP BY run_id, step HAVING sum(succeeded) > 0
UNION ALL
SELECT run_id, step, 'FAILED', sum(failed) FROM step_count WHERE run_id = :id
 GROUP BY run_id, step HAVING sum(failed) > 0
UNION ALL
SELECT run_id, step, 'CANCELLED', sum(cancelled) FROM step_count WHERE run_id = :id
 GROUP BY run_id, step HAVING sum(cancelled) > 0
