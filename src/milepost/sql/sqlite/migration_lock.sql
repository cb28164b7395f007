-- The runner's own BEGIN IMMEDIATE is the lock.
SELECT 1
