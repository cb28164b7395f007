SELECT id, state FROM run WHERE id IN (SELECT value FROM json_each(:id))
