SELECT id, state FROM job WHERE id IN (SELECT value FROM json_each(:id))
