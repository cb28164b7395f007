-- What is known of keys and not removed: the version, and whether this run has seen it.
SELECT key, version, root_id = :root_id FROM raw
 WHERE pipeline_id = :pipeline_id AND key IN (SELECT value FROM json_each(:key))
   AND removed_by IS NULL
