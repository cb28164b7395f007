-- A page of the runs that maintenance looks at, in the order of their ids.
SELECT id::text, state FROM run
 WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND (:after::uuid IS NULL OR run.id > :after::uuid)
 ORDER BY run.id
 LIMIT :most
