-- Looks again at a held run whose row is locked by now: it may have been added to meanwhile.
SELECT version FROM run
 WHERE id = :id AND state = 'CREATED' AND due_at <= {now}
   AND NOT EXISTS (SELECT 1 FROM step
                    WHERE step.run_id = run.id
                      AND step.filled_at > {now} - (run.due_at - run.created_at))
