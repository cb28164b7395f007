-- A page of old runs, in the order of their ids, which is that of their births: whose time is over?
SELECT run.id, run.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
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
  FROM (SELECT id, state, finished_at, version FROM run
         WHERE id > :after
         ORDER BY id
         LIMIT :most) AS run
 WHERE run.id < :before
