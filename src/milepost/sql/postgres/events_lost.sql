-- Entries leave with their subject, or when they are older than anybody may be away.
SELECT :base::text IS NULL OR :key::text IS NULL
