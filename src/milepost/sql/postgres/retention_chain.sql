-- These runs and those next to them in a chain of resumed runs: whose time is over?
SELECT run.id::text, run.resumes::text, run.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
       AND coalesce(run.finished_at,
                    (SELECT at FROM journal WHERE subject_id = run.id AND machine = 'run'
                        AND seq = run.version))
           <= {now} - (CASE run.state WHEN 'SUCCEEDED' THEN :succeeded_us::bigint
                        ELSE :failed_us::bigint END){micros}
       AND NOT EXISTS (SELECT 1 FROM journal WHERE subject_id = run.id AND machine = 'run'
                          AND move <> 'erase'
                          AND at > {now} - (SELECT least_us FROM retention){micros})
       AND NOT EXISTS (SELECT 1 FROM outbox WHERE machine = 'run' AND subject_id = run.id
                          AND delivered_at IS NULL AND dead_at IS NULL)
  FROM run
 WHERE run.id = ANY (:id::uuid[]) OR run.resumes = ANY (:id::uuid[])
