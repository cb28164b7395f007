-- Runs that missed their deadline and are not stopping yet.
SELECT {text:id} FROM run
 WHERE state IN ('CREATED', 'QUEUED', 'RUNNING', 'FINALIZING') AND deadline_at <= {now}
 ORDER BY deadline_at
 LIMIT :most
