-- Whoever else runs one of them again waits, and retention lets it stay.
SELECT id::text, state, run_id::text, payload IS NULL, origin_id IS NOT NULL FROM job
 WHERE id = ANY (:id::uuid[])
 ORDER BY id
   FOR UPDATE
