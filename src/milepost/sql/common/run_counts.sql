SELECT step, state, count(*) FROM job WHERE run_id = :id GROUP BY step, state
