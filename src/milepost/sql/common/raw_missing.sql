-- Keys that are marked as missing: all of them, or those that an operator has confirmed.
SELECT key FROM raw
 WHERE pipeline_id = :pipeline_id AND missing_in IS NOT NULL AND key > :after
   AND (NOT :confirmed
        OR EXISTS (SELECT 1 FROM removal_decision AS d
                    WHERE d.pipeline_id = raw.pipeline_id AND d.root_id = raw.missing_in
                      AND d.decision = 'confirmed'))
 ORDER BY key
 LIMIT :most
