-- What the store's operations keep beside jobs and runs: pinned steps, fan-in, failures, usage,
-- signals.

-- What a published output becomes is pinned on its step, so publishing needs no user code.
ALTER TABLE step ADD COLUMN slots INTEGER NOT NULL DEFAULT 1 CHECK (slots BETWEEN 1 AND 16);
ALTER TABLE step ADD COLUMN priority INTEGER NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 9);
ALTER TABLE step ADD COLUMN retries INTEGER NOT NULL DEFAULT 3;
ALTER TABLE step ADD COLUMN recoveries INTEGER;
ALTER TABLE step ADD COLUMN poll_limit INTEGER NOT NULL DEFAULT 1000;
ALTER TABLE step ADD COLUMN poison_limit INTEGER NOT NULL DEFAULT 3;
ALTER TABLE step ADD COLUMN timeout_us INTEGER;
-- tolerance: the share of failures that the step bears
ALTER TABLE step ADD COLUMN tolerance REAL NOT NULL DEFAULT 0;
ALTER TABLE step ADD COLUMN fail_fast INTEGER NOT NULL DEFAULT 1;

ALTER TABLE publication ADD COLUMN first_step INTEGER;

-- The id that the output will have as a job: publishing twice cannot make two of it.
ALTER TABLE staged ADD COLUMN job_id TEXT NOT NULL DEFAULT '';

-- The evidence of every failed attempt. Not in the journal, which is for ever: erase empties this.
CREATE TABLE failure (
  job_id TEXT NOT NULL,
  fence INTEGER NOT NULL,
  at INTEGER NOT NULL,
  error TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  PRIMARY KEY (job_id, fence)
) STRICT, WITHOUT ROWID;
-- Errors are grouped where they are read: no row of a group is written.
CREATE INDEX failure_group ON failure (fingerprint, at);

CREATE TABLE usage (
  job_id TEXT NOT NULL,
  fence INTEGER NOT NULL,
  name TEXT NOT NULL,
  amount REAL NOT NULL,
  PRIMARY KEY (job_id, fence, name)
) STRICT, WITHOUT ROWID;

-- A signal that comes before the wait is remembered (H-93).
CREATE TABLE signal (
  id TEXT PRIMARY KEY NOT NULL,
  job_id TEXT NOT NULL,
  at INTEGER NOT NULL,
  data BLOB,
  fence INTEGER NOT NULL,                    -- the job's when it came: a later claim could have read it
  taken_by INTEGER                           -- the fence of the attempt that read it
) STRICT;
CREATE INDEX signal_job ON signal (job_id);

-- Jobs whose budget is spent, and suspects: one more loss would end them.
CREATE INDEX job_spent ON job (id)
  WHERE (losses - poison_limit >= -1 OR losses - coalesce(recoveries, retries - errors) > 0
         OR errors - retries > 0
         OR (losses > 0 AND losses - coalesce(recoveries, retries - errors) = 0))
    AND state IN ('WAITING', 'READY', 'QUEUED', 'RETRYING');
CREATE INDEX job_failed ON job (id, queue, state) WHERE state = 'FAILED';
-- Jobs by their last error, newest first. One that never failed stands in none of these.
CREATE INDEX job_fingerprint ON job (fingerprint, id, state) WHERE fingerprint IS NOT NULL;
CREATE INDEX job_error_type ON job (error_type, id) WHERE error_type IS NOT NULL;
CREATE INDEX job_error_code ON job (error_code, id) WHERE error_code IS NOT NULL;
-- Jobs as people search for them, newest first. A job that is queued, runs and succeeds, without a unique
-- key, stands in none of these.
-- Comparisons, which are cheaper than a list: SQLite looks one up in a table for every update.
CREATE INDEX job_state ON job (state, id, queue)
  WHERE state <> 'QUEUED' AND state <> 'RUNNING' AND state <> 'SUCCEEDED' AND state <> 'FAILED';
CREATE INDEX job_key ON job (unique_key, id) WHERE unique_key IS NOT NULL;
-- Few: jobs of runs that failed or were lost at least once, whatever became of them.
CREATE INDEX job_errored ON job (run_id)
  WHERE run_id IS NOT NULL AND (errors + losses > 0 OR state = 'FAILED');

-- Counters are kept by the statement that moves the jobs, whoever makes it.
CREATE TRIGGER job_steps_insert AFTER INSERT ON job WHEN NEW.run_id IS NOT NULL
BEGIN
  UPDATE step_count SET open = open + 1
   WHERE run_id = NEW.run_id AND step = NEW.step
     AND slot = coalesce(NEW.ordinal, 0) % (SELECT slots FROM step
                                             WHERE run_id = NEW.run_id AND number = NEW.step);
  -- The counter's row stands for its step and its run: a job of none is an orphan.
  SELECT RAISE(ABORT, 'milepost: job: its run has no such step') WHERE changes() = 0;
END;
CREATE TRIGGER job_steps_end AFTER UPDATE ON job
  WHEN NEW.run_id IS NOT NULL AND NEW.version <> OLD.version
   AND NEW.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND NEW.move <> 'erase'
BEGIN
  UPDATE step_count
     SET open = open - 1,
         succeeded = succeeded + (NEW.state = 'SUCCEEDED'),
         failed = failed + (NEW.state = 'FAILED'),
         cancelled = cancelled + (NEW.state = 'CANCELLED')
   WHERE run_id = NEW.run_id AND step = NEW.step
     AND slot = coalesce(NEW.ordinal, 0) % (SELECT slots FROM step
                                             WHERE run_id = NEW.run_id AND number = NEW.step);
END;

-- A batch within a batch is an item of its parent's first step, counted by the moves that create and end
-- it (H-68), in a slot of its own.
CREATE TRIGGER run_count_child AFTER INSERT ON run WHEN NEW.parent_id IS NOT NULL OR NEW.depth <> 0
BEGIN
  UPDATE step_count SET open = open + 1
   WHERE run_id = NEW.parent_id AND step = 0 AND slot = -2
     AND EXISTS (SELECT 1 FROM run AS parent
                  WHERE parent.id = NEW.parent_id AND parent.depth = NEW.depth - 1 AND NEW.depth <= 8
                    AND (parent.state = 'CREATED' OR parent.state = 'QUEUED'));
  SELECT RAISE(ABORT, 'milepost: run: its parent takes no such batch as an item') WHERE changes() = 0;
END;
CREATE TRIGGER run_count_child_end AFTER UPDATE ON run
  WHEN NEW.parent_id IS NOT NULL
   AND NEW.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
   AND OLD.state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
BEGIN
  UPDATE step_count
     SET open = open - 1,
         succeeded = succeeded + (NEW.state = 'SUCCEEDED'),
         failed = failed + (NEW.state = 'FAILED'),
         cancelled = cancelled + (NEW.state = 'CANCELLED')
   WHERE run_id = NEW.parent_id AND step = 0 AND slot = -2;
END;

-- Tags, by name and the beginning of their value, newest first: a row for each tag of a job, none for jobs
-- without. Triggers write it, and nobody else: tags never change.
CREATE TABLE job_tag (
  name TEXT NOT NULL,
  value TEXT NOT NULL,
  job_id TEXT NOT NULL,
  PRIMARY KEY (name, value, job_id)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER job_tags_insert AFTER INSERT ON job WHEN NEW.tags IS NOT NULL
BEGIN
  INSERT OR IGNORE INTO job_tag (name, value, job_id)
  SELECT key, substr(value, 1, 200), NEW.id FROM json_each(CASE WHEN json_valid(NEW.tags) THEN NEW.tags END)
   WHERE type = 'text';
END;
CREATE TRIGGER job_tags_delete AFTER DELETE ON job WHEN OLD.tags IS NOT NULL
BEGIN
  DELETE FROM job_tag
   WHERE job_id = OLD.id
     AND (name, value) IN (SELECT key, substr(value, 1, 200)
                             FROM json_each(CASE WHEN json_valid(OLD.tags) THEN OLD.tags END));
END;
