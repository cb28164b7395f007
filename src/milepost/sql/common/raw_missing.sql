-- Keys that are marked as missing: those that an operator has confirmed, or has not, or all of them.
SELECT key FROM raw
 WHERE pipeline_id = :pipeline_id AND missing_in IS NOT NULL AND key > :after
   AND (CAST(:confirmed AS boolean) IS NULL OR CAST(:confirmed AS boolean) =
        EXISTS (SELECT 1 FROM removal_decision AS d
                 WHERE d.pipeline_id = raw.pipeline_id AND d.root_id = raw.missing_in
                   AND d.decision = 'confirmed'))
 ORDER BY key
 LIMIT :most
