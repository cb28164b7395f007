-- For the planner: of a list whose length it does not know it expects little, and looks each key up;
-- of a long one it would rather walk every record of the pipeline, of which it has no statistics yet.
SELECT key, version, hash, payload FROM raw
 WHERE pipeline_id = :pipeline_id AND key = ANY (ARRAY(SELECT unnest(:key::text[])))
