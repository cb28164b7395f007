UPDATE pipeline_run SET after_mark = :after_mark WHERE run_id = :run_id
