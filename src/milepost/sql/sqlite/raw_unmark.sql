UPDATE raw SET missing_in = NULL
 WHERE pipeline_id = :pipeline_id AND key IN (SELECT value FROM json_each(:key))
   AND missing_in IS NOT NULL
