SELECT id FROM job
 WHERE id IN (SELECT value FROM json_each(:id)) AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
