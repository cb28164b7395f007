-- A page of the runs that maintenance looks at, in the order of their ids.
SELECT id, state FROM run
 WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND (:after IS NULL OR run.id > :after)
 ORDER BY run.id
 LIMIT :most
