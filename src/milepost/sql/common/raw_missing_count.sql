SELECT (SELECT count(*) FROM raw WHERE pipeline_id = :pipeline_id AND missing_in IS NOT NULL),
       (SELECT count(*) FROM raw WHERE pipeline_id = :pipeline_id AND removed_by IS NULL)
