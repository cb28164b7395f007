UPDATE raw SET removed_by = :root_id::uuid, missing_in = NULL
 WHERE pipeline_id = :pipeline_id AND key = ANY (:key::text[])
