UPDATE raw SET removed_by = NULL
 WHERE pipeline_id = :pipeline_id AND key IN (SELECT value FROM json_each(:key))
