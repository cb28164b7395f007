-- How many records are marked as missing, how many of them an operator has confirmed, how many live.
SELECT (SELECT count(*) FROM raw WHERE pipeline_id = :pipeline_id AND missing_in IS NOT NULL),
       (SELECT count(*) FROM raw JOIN removal_decision AS d
                 ON d.pipeline_id = raw.pipeline_id AND d.root_id = raw.missing_in
         WHERE raw.pipeline_id = :pipeline_id AND raw.missing_in IS NOT NULL
           AND d.decision = 'confirmed'),
       (SELECT count(*) FROM raw WHERE pipeline_id = :pipeline_id AND removed_by IS NULL)
