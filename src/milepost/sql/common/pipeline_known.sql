-- Whether anything says that this pipeline has once been read to its end (H-77).
SELECT EXISTS (SELECT 1 FROM watermark_entry WHERE pipeline_id = :pipeline_id)
    OR EXISTS (SELECT 1 FROM pipeline_run AS p JOIN run ON run.id = p.run_id
                WHERE p.pipeline_id = :pipeline_id AND run.state = 'SUCCEEDED'
                  AND p.mode IN ('full', 'incremental'))
