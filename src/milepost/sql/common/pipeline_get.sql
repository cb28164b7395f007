SELECT id, name, mark, measure, target, {text:last_run_id}, last_run_completed_at, dataset_version,
       rules_digest
  FROM pipeline
 WHERE name = :name
