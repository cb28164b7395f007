-- The number of a pipeline's next run. Whoever asks holds the pipeline: others wait, and see the run.
UPDATE pipeline SET runs = runs + 1 WHERE id = :pipeline_id RETURNING runs
