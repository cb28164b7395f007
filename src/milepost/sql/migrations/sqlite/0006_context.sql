-- What a running handler keeps for its next attempt: the steps it has done, and where it stands.

-- The last lines that a job has logged, of all its attempts: JSON, one a line.
CREATE TABLE job_log (
  job_id TEXT PRIMARY KEY NOT NULL,
  fence INTEGER NOT NULL,                     -- the attempt that wrote last
  at INTEGER NOT NULL,
  content TEXT NOT NULL
) STRICT;

-- `step` is a stage of a run; this is a piece of one job's handler that is done and stays done.
CREATE TABLE durable_step (
  job_id TEXT NOT NULL,
  name TEXT NOT NULL,
  fence INTEGER NOT NULL,                    -- the attempt that did it
  at INTEGER NOT NULL,
  result BLOB,                               -- NULL: it returned None
  PRIMARY KEY (job_id, name)
) STRICT;

-- A step is recorded by the attempt that holds its job, or it is forged: the next attempt would not do
-- what it says is done.
CREATE TRIGGER durable_step_refuse_insert BEFORE INSERT ON durable_step
  WHEN NOT EXISTS (SELECT 1 FROM job
                    WHERE id = NEW.job_id AND fence = NEW.fence AND state = 'RUNNING')
BEGIN
  SELECT RAISE(ABORT, 'milepost: job: a step is recorded by the attempt that runs it, under its fence');
END;
CREATE TRIGGER durable_step_refuse_update BEFORE UPDATE ON durable_step
  WHEN NOT EXISTS (SELECT 1 FROM job
                    WHERE id = NEW.job_id AND fence = NEW.fence AND state = 'RUNNING')
BEGIN
  SELECT RAISE(ABORT, 'milepost: job: a step is recorded by the attempt that runs it, under its fence');
END;

-- How often `position` was saved: whoever saves names the number it read, so that no save is lost.
ALTER TABLE progress ADD COLUMN saves INTEGER NOT NULL DEFAULT 0;

-- They go with their job, whoever deletes it.
CREATE TRIGGER job_forget_context AFTER DELETE ON job
BEGIN
  DELETE FROM durable_step WHERE job_id = OLD.id;
  DELETE FROM progress WHERE job_id = OLD.id;
END;
