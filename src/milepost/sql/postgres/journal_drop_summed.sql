-- They left as they were summed up.
SELECT 1 WHERE cardinality(:id::uuid[]) < 0
