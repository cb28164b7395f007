SELECT count(*) FROM raw WHERE pipeline_id = :pipeline_id AND removed_by = :root_id
