-- Nobody else writes in this transaction's time.
SELECT id FROM run WHERE id IN (SELECT value FROM json_each(:id)) ORDER BY run.id
