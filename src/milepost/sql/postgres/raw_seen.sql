SELECT count(*) FROM raw
 WHERE pipeline_id = :pipeline_id AND root_id = :root_id::uuid AND ordinal = :ordinal
