-- What is known of keys and not removed: the version, and whether this run has seen it.
-- For the planner: see raw_read.
SELECT key, version, root_id = :root_id::uuid FROM raw
 WHERE pipeline_id = :pipeline_id AND key = ANY (ARRAY(SELECT unnest(:key::text[])))
   AND removed_by IS NULL
