SELECT key FROM raw WHERE pipeline_id = :pipeline_id AND missing_in IS NOT NULL ORDER BY key LIMIT :most
