-- Whether anything says that this pipeline has once been read to its end (H-77).
SELECT EXISTS (SELECT 1 FROM watermark_entry WHERE pipeline_id = :pipeline_id)
    OR EXISTS (SELECT 1 FROM raw WHERE pipeline_id = :pipeline_id)
       AND EXISTS (SELECT 1 FROM run WHERE kind = :name AND state = 'SUCCEEDED')
