-- Entries leave with their subject alone.
SELECT :base::text IS NULL OR :key::text IS NULL
