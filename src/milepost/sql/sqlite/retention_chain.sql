-- These runs and those next to them in a chain of resumed runs: whose time is over?
SELECT run.id, run.resumes, run.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
       AND coalesce(run.finished_at,
                    (SELECT at FROM journal WHERE subject_id = run.id AND machine = 'run'
                        AND seq = run.version))
           <= {now} - (CASE run.state WHEN 'SUCCEEDED' THEN :succeeded_us
                        ELSE :failed_us END)
       AND NOT EXISTS (SELECT 1 FROM journal WHERE subject_id = run.id AND machine = 'run'
                          AND move <> 'erase'
                          AND at > {now} - (SELECT least_us FROM retention){micros})
       AND NOT EXISTS (SELECT 1 FROM outbox WHERE machine = 'run' AND subject_id = run.id
                          AND delivered_at IS NULL AND dead_at IS NULL)
  FROM run
 WHERE run.id IN (SELECT value FROM json_each(:id)) OR run.resumes IN (SELECT value FROM json_each(:id))
