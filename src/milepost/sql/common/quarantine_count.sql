SELECT count(*) FROM quarantine WHERE pipeline_id = :pipeline_id AND resolved_at IS NULL
