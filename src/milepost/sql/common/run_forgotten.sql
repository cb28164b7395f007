-- Held runs that were neither sealed nor added to in time (H-107); how long that is was fixed when
-- they were created.
SELECT {text:id} FROM run
 WHERE state = 'CREATED' AND due_at <= {now}
   AND NOT EXISTS (SELECT 1 FROM step
                    WHERE step.run_id = run.id
                      AND step.filled_at > {now} - (run.due_at - run.created_at))
 ORDER BY due_at
 LIMIT :most
