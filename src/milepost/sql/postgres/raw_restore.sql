UPDATE raw SET removed_by = NULL WHERE pipeline_id = :pipeline_id AND key = ANY (:key::text[])
