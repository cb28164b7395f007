-- A run that leaves the watermark alone ended well: what is shown is a newer version.
UPDATE pipeline
   SET dataset_version = dataset_version + 1, last_run_completed_at = last_run_completed_at
 WHERE id = :pipeline_id
