SELECT id, rerun_of FROM job
 WHERE id IN (SELECT value FROM json_each(:id)) AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
