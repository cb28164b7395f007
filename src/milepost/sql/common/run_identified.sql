-- Whether a run landed records without a key, and whether it landed any with one.
SELECT EXISTS (SELECT 1 FROM quarantine AS q
                WHERE q.root_id = :root_id AND q.resolved_at IS NULL AND q.key LIKE '?%'),
       EXISTS (SELECT 1 FROM raw AS r
                WHERE r.pipeline_id = :pipeline_id AND r.root_id = :root_id
                  AND r.key NOT LIKE '?%')
