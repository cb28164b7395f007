-- What runs that ended left unread and no later one has covered.
SELECT {text:reading.root_id}, ordinal, low, high, reading.start_mark, reading.end_mark
  FROM reading JOIN pipeline_run AS p ON p.run_id = reading.root_id
 WHERE reading.pipeline_id = :pipeline_id AND closed_at IS NULL AND covered_by IS NULL
   AND p.mode IN ('full', 'incremental')
   AND NOT EXISTS (SELECT 1 FROM pipeline_run AS live JOIN run ON run.id = live.run_id
                    WHERE live.root_id = reading.root_id
                      AND run.state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED'))
 ORDER BY reading.root_id, ordinal
