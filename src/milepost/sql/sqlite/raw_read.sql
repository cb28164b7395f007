SELECT key, version, hash, payload FROM raw
 WHERE pipeline_id = :pipeline_id AND key IN (SELECT value FROM json_each(:key))
