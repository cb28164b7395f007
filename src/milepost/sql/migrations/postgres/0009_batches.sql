-- Batches: a reducer reads a step's results in order, a page at a time.
DROP INDEX job_run;
CREATE INDEX job_run ON job (run_id, step, state, id) WHERE run_id IS NOT NULL;
