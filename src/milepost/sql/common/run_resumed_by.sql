-- The run that goes on with this one. One that was given up before it was filled is none.
SELECT {text:run.id}, run.state
  FROM run
 WHERE run.resumes = :id
   AND (run.state NOT IN ('FAILED', 'CANCELLED')
        OR EXISTS (SELECT 1 FROM journal
                    WHERE journal.subject_id = run.id AND journal.machine = 'run'
                      AND journal.move = 'seal'))
