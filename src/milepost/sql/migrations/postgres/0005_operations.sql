-- What the store's operations keep beside jobs and runs: pinned steps, fan-in, failures, usage,
-- signals.

-- What a published output becomes is pinned on its step, so publishing needs no user code.
ALTER TABLE step
  ADD COLUMN slots smallint NOT NULL DEFAULT 1 CHECK (slots BETWEEN 1 AND 16),
  ADD COLUMN priority smallint NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 9),
  ADD COLUMN retries integer NOT NULL DEFAULT 3,
  ADD COLUMN recoveries integer,
  ADD COLUMN poll_limit integer NOT NULL DEFAULT 1000,
  ADD COLUMN poison_limit integer NOT NULL DEFAULT 3,
  ADD COLUMN timeout_us bigint,
  ADD COLUMN tolerance double precision NOT NULL DEFAULT 0,  -- the share of failures a step bears
  ADD COLUMN fail_fast boolean NOT NULL DEFAULT true;

ALTER TABLE publication ADD COLUMN first_step integer;

-- The id that the output will have as a job: publishing twice cannot make two of it.
ALTER TABLE staged ADD COLUMN job_id uuid NOT NULL;

-- The evidence of every failed attempt. Not in the journal, which is for ever: erase empties this.
CREATE TABLE failure (
  job_id uuid NOT NULL,
  fence bigint NOT NULL,
  at timestamptz NOT NULL DEFAULT milepost_now(),
  error text NOT NULL,
  fingerprint text NOT NULL,
  PRIMARY KEY (job_id, fence)
);
-- Errors are grouped where they are read: no row of a group is written, and none is waited for.
CREATE INDEX failure_group ON failure (fingerprint, at);

CREATE TABLE usage (
  job_id uuid NOT NULL,
  fence bigint NOT NULL,
  name text NOT NULL,
  amount double precision NOT NULL,
  PRIMARY KEY (job_id, fence, name)
);

-- A signal that comes before the wait is remembered (H-93).
CREATE TABLE signal (
  id uuid PRIMARY KEY,
  job_id uuid NOT NULL,
  at timestamptz NOT NULL DEFAULT milepost_now(),
  data bytea,
  fence bigint NOT NULL,                     -- the job's when it came: a later claim could have read it
  taken_by bigint                            -- the fence of the attempt that read it
);
CREATE INDEX signal_job ON signal (job_id);

-- By default autovacuum waits until a fifth of all kept jobs is dead; claims would pay for it.
ALTER TABLE job SET (
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);

-- Jobs whose budget is spent, and suspects: one more loss would end them.
CREATE INDEX job_spent ON job (id)
  WHERE state IN ('WAITING', 'READY', 'QUEUED', 'RETRYING')
    AND (losses - poison_limit >= -1 OR losses - coalesce(recoveries, retries - errors) > 0
         OR errors - retries > 0
         OR (losses > 0 AND losses - coalesce(recoveries, retries - errors) = 0));
CREATE INDEX job_failed ON job (id) INCLUDE (queue) WHERE state = 'FAILED';
-- Jobs by their last error, newest first. One that never failed stands in none of these.
CREATE INDEX job_fingerprint ON job (fingerprint, id) INCLUDE (state) WHERE fingerprint IS NOT NULL;
CREATE INDEX job_error_type ON job (error_type, id) WHERE error_type IS NOT NULL;
CREATE INDEX job_error_code ON job (error_code, id) WHERE error_code IS NOT NULL;
-- Jobs as people search for them, newest first. A job that is queued, runs and succeeds, without a unique
-- key, stands in none of these.
-- Comparisons, which are cheaper than a list: SQLite looks one up in a table for every update.
CREATE INDEX job_state ON job (state, id) INCLUDE (queue)
  WHERE state <> 'QUEUED' AND state <> 'RUNNING' AND state <> 'SUCCEEDED' AND state <> 'FAILED';
CREATE INDEX job_key ON job (unique_key, id) WHERE unique_key IS NOT NULL;
-- Few: jobs of runs that failed or were lost at least once, whatever became of them.
CREATE INDEX job_errored ON job (run_id)
  WHERE run_id IS NOT NULL AND (errors + losses > 0 OR state = 'FAILED');

-- Counters are kept by the statement that moves the jobs, whoever makes it. They are locked in the
-- order of their key: settlers that took them as they came deadlocked. New jobs of a step have a row of
-- their own, so that who publishes does not wait for who settles: it stands in slot -1; the others
-- count ends, and the sum over all is what is open.
-- Nobody adds to a run that has ended; and who is no worker, only before it begins, or its reducer.
CREATE FUNCTION milepost_count_inserts() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  one record;
  standing text;
BEGIN
  IF (TG_RELID = to_regclass('job')) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a table that this function serves', TG_RELID::regclass;
  END IF;
  FOR one IN
    SELECT run_id, step, count(*) AS created FROM new_rows WHERE run_id IS NOT NULL
     GROUP BY run_id, step ORDER BY run_id, step
  LOOP
    UPDATE step_count SET open = open + one.created
     WHERE run_id = one.run_id AND step = one.step AND slot = -1
    RETURNING (SELECT state FROM run WHERE id = one.run_id) INTO standing;
    -- The counter's row stands for its step and its run: a job of none is an orphan.
    IF NOT FOUND THEN
      RAISE EXCEPTION USING ERRCODE = 'MP001',
        MESSAGE = format('milepost: job %s: its run %s has no such step (%s)',
                         (SELECT min(id::text) FROM new_rows
                           WHERE run_id = one.run_id AND step IS NOT DISTINCT FROM one.step),
                         one.run_id, coalesce(one.step::text, 'none'));
    END IF;
    IF NOT has_column_privilege(session_user, to_regclass('job')::oid, 'worker_id', 'update') THEN
      -- Held until this commits: it does not end meanwhile.
      SELECT CASE
               WHEN state = 'CREATED' THEN NULL
               WHEN state = 'FINALIZING' AND EXISTS (
                      SELECT 1 FROM step
                       WHERE run_id = one.run_id AND number = one.step AND role = 'reduce') THEN NULL
               WHEN EXISTS (SELECT 1 FROM journal
                             WHERE subject_id = one.run_id AND machine = 'run' AND seq = 1
                               AND xid = pg_current_xact_id()) THEN NULL
               ELSE state END
        INTO standing FROM run WHERE id = one.run_id FOR SHARE;
    ELSIF standing NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED') THEN
      standing := NULL;
    END IF;
    IF standing IS NOT NULL THEN
      RAISE EXCEPTION USING ERRCODE = 'MP001',
        MESSAGE = format('milepost: run %s is %s: no more jobs are added to it', one.run_id, standing);
    END IF;
  END LOOP;
  RETURN NULL;
END $$;

-- What ended is what is final now less what was final before: a counter put right on a final row,
-- which is no move, ends nothing. Which slot counts it does not matter; whoever always takes the same
-- one waits for few others, and writes one row a step instead of one for every slot.
CREATE FUNCTION milepost_count_ends() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  one record;
BEGIN
  IF (TG_RELID = to_regclass('job')) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a table that this function serves', TG_RELID::regclass;
  END IF;
  IF NOT EXISTS (SELECT 1 FROM new_rows
                  WHERE run_id IS NOT NULL AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
                    AND move <> 'erase') THEN
    RETURN NULL;
  END IF;
  FOR one IN
    SELECT e.run_id, e.step, sum(e.one) AS ended,
           coalesce(sum(e.one) FILTER (WHERE e.state = 'SUCCEEDED'), 0) AS succeeded,
           coalesce(sum(e.one) FILTER (WHERE e.state = 'FAILED'), 0) AS failed,
           coalesce(sum(e.one) FILTER (WHERE e.state = 'CANCELLED'), 0) AS cancelled
      FROM (SELECT run_id, step, state, 1 AS one FROM new_rows
             WHERE run_id IS NOT NULL AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
             UNION ALL
            SELECT run_id, step, state, -1 FROM old_rows
             WHERE run_id IS NOT NULL AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')) e
     GROUP BY e.run_id, e.step
    HAVING sum(e.one) <> 0
     ORDER BY e.run_id, e.step
  LOOP
    UPDATE step_count
       SET open = open - one.ended, succeeded = succeeded + one.succeeded,
           failed = failed + one.failed, cancelled = cancelled + one.cancelled
     WHERE run_id = one.run_id AND step = one.step
       AND slot = (SELECT pg_backend_pid() % slots FROM step
                    WHERE step.run_id = one.run_id AND step.number = one.step);
  END LOOP;
  RETURN NULL;
END $$;

CREATE TRIGGER job_steps_insert AFTER INSERT ON job
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_count_inserts();
CREATE TRIGGER job_steps_end AFTER UPDATE ON job
  REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_count_ends();

-- A batch within a batch is an item of its parent's first step, counted by the moves that create and end
-- it (H-68). It is counted in a slot of its own, -2, which is written by whoever holds the child: settlers
-- of the parent's jobs hold the other slots before they hold any run.
CREATE FUNCTION milepost_count_child() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF (TG_RELID = to_regclass('run')) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a table that this function serves', TG_RELID::regclass;
  END IF;
  IF TG_OP = 'UPDATE' THEN
    UPDATE step_count
       SET open = open - 1, succeeded = succeeded + (NEW.state = 'SUCCEEDED')::int,
           failed = failed + (NEW.state = 'FAILED')::int,
           cancelled = cancelled + (NEW.state = 'CANCELLED')::int
     WHERE run_id = NEW.parent_id AND step = 0 AND slot = -2;
    RETURN NULL;
  END IF;
  -- The parent is being made, by this transaction or piece by piece.
  UPDATE step_count SET open = open + 1
   WHERE run_id = NEW.parent_id AND step = 0 AND slot = -2
     AND EXISTS (SELECT 1 FROM run AS parent
                  WHERE parent.id = NEW.parent_id AND parent.depth = NEW.depth - 1 AND NEW.depth <= 8
                    AND (parent.state = 'CREATED'
                         OR EXISTS (SELECT 1 FROM journal
                                     WHERE subject_id = parent.id AND machine = 'run' AND seq = 1
                                       AND xid = pg_current_xact_id())));
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'MP001',
      MESSAGE = format('milepost: run %s: its parent %s takes no such batch as an item', NEW.id,
                       coalesce(NEW.parent_id::text, '(none)'));
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER run_b_count_child AFTER INSERT ON run FOR EACH ROW
  WHEN (NEW.parent_id IS NOT NULL OR NEW.depth <> 0)
  EXECUTE FUNCTION milepost_count_child();
CREATE TRIGGER run_b_count_child_end AFTER UPDATE ON run FOR EACH ROW
  WHEN (NEW.parent_id IS NOT NULL
        AND NEW.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
        AND OLD.state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED'))
  EXECUTE FUNCTION milepost_count_child();

-- Tags, by name and the beginning of their value, newest first: a row for each tag of a job, none for jobs
-- without. Triggers write it, and nobody else: tags never change.
CREATE TABLE job_tag (
  name text NOT NULL,
  value text NOT NULL,
  job_id uuid NOT NULL,
  PRIMARY KEY (name, value, job_id)
);
CREATE FUNCTION milepost_tag() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF (TG_RELID = to_regclass('job')) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a table that this function serves', TG_RELID::regclass;
  END IF;
  IF TG_OP = 'INSERT' THEN
    INSERT INTO job_tag (name, value, job_id)
    SELECT key, left(value, 200), NEW.id FROM jsonb_each_text(NEW.tags) WHERE value IS NOT NULL;
  ELSE
    DELETE FROM job_tag USING jsonb_each_text(OLD.tags) AS had (key, value)
     WHERE job_tag.name = had.key AND job_tag.value = left(had.value, 200) AND job_tag.job_id = OLD.id;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER job_tags_insert AFTER INSERT ON job FOR EACH ROW
  WHEN (jsonb_typeof(NEW.tags) = 'object') EXECUTE FUNCTION milepost_tag();
CREATE TRIGGER job_tags_delete AFTER DELETE ON job FOR EACH ROW
  WHEN (jsonb_typeof(OLD.tags) = 'object') EXECUTE FUNCTION milepost_tag();
