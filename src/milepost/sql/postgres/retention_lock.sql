-- Whoever resumes one of them meanwhile waits, and then finds nothing.
SELECT id::text FROM run WHERE id = ANY (:id::uuid[]) ORDER BY run.id FOR UPDATE SKIP LOCKED
