SELECT {text:root_id}, decision, records, actor, reason, at
  FROM removal_decision
 WHERE pipeline_id = :pipeline_id
 ORDER BY at, root_id
