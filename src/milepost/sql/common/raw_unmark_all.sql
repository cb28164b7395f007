UPDATE raw SET missing_in = NULL WHERE pipeline_id = :pipeline_id AND missing_in IS NOT NULL
