-- A subject that ended without its message, and a message whose subject is gone or has not ended (I16).
SELECT 'job', {text:job.id}, 'it ended and has a channel but no message' FROM job
 WHERE job.channel IS NOT NULL AND job.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
   AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.machine = 'job' AND o.subject_id = job.id
                      AND o.channel = job.channel AND o.state = job.state)
 UNION ALL
SELECT 'run', {text:run.id}, 'it ended and has a channel but no message' FROM run
 WHERE run.channel IS NOT NULL AND run.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
   AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.machine = 'run' AND o.subject_id = run.id
                      AND o.channel = run.channel AND o.state = run.state)
 UNION ALL
SELECT o.machine, {text:o.subject_id}, 'it has a message but did not end so' FROM outbox o
 WHERE NOT CASE o.machine
           WHEN 'job' THEN EXISTS (SELECT 1 FROM job WHERE job.id = o.subject_id
                                      AND job.state = o.state AND job.version >= o.seq)
           ELSE EXISTS (SELECT 1 FROM run WHERE run.id = o.subject_id
                           AND run.state = o.state AND run.version >= o.seq) END
