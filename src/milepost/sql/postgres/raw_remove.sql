-- For the planner: see raw_read.
UPDATE raw SET removed_by = :root_id::uuid, missing_in = NULL
 WHERE pipeline_id = :pipeline_id AND key = ANY (ARRAY(SELECT unnest(:key::text[])))
