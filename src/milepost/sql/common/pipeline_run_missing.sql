UPDATE pipeline_run SET missing = :missing WHERE run_id = :run_id
