-- A file is a schema of its own.
SELECT 1
