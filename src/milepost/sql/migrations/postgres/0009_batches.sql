-- Batches: a reducer reads a step's results in order, a page at a time. What runs is left out: `job_held`
-- has it, and a claim need not write this index anew (a twentieth of what a chunk costs). A query for
-- jobs of a run in any state says so, `(state = 'RUNNING' OR state <> 'RUNNING')`: both indexes serve it.
DROP INDEX job_run;
CREATE INDEX job_run ON job (run_id, step, state, id) WHERE run_id IS NOT NULL AND state <> 'RUNNING';
