-- Tells those who rest that there may be work; nobody is told when none rests, because notifying
-- serialises commits.
SELECT pg_notify({channel}, '') WHERE EXISTS (SELECT 1 FROM worker WHERE state IN ('IDLE', 'BACKOFF'))
