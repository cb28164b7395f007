-- What was consolidated after all, or is quarantined anew by this root.
UPDATE quarantine SET resolved_at = {now}
 WHERE pipeline_id = :pipeline_id AND resolved_at IS NULL AND root_id <> :root_id::uuid
   AND key = ANY (:key::text[])
