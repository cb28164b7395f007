SELECT key, version, hash, payload FROM raw
 WHERE pipeline_id = :pipeline_id AND key = ANY (:key::text[])
