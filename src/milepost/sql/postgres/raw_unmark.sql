-- For the planner: see raw_read.
UPDATE raw SET missing_in = NULL
 WHERE pipeline_id = :pipeline_id AND key = ANY (ARRAY(SELECT unnest(:key::text[])))
   AND missing_in IS NOT NULL
