-- Whoever writes has SQLite to itself: there is nothing to wait for.
SELECT 1
