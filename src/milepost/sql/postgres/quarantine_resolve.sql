-- What was consolidated after all, by whichever root it was rejected; or is rejected anew by this one.
UPDATE quarantine SET resolved_at = {now}
 WHERE pipeline_id = :pipeline_id AND resolved_at IS NULL AND key = ANY (:key::text[])
   AND (root_id <> :root_id::uuid OR key <> ALL (:rejected::text[]))
