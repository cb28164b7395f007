SELECT id FROM job WHERE run_id IN (SELECT value FROM json_each(:id)) LIMIT :most
