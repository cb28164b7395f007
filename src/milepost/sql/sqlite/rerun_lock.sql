SELECT id, state, run_id, payload IS NULL, origin_id IS NOT NULL FROM job
 WHERE id IN (SELECT value FROM json_each(:id))
 ORDER BY id
