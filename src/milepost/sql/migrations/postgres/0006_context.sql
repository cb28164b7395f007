-- What a running handler keeps for its next attempt: the steps it has done, and where it stands.

-- The last lines that a job has logged, of all its attempts: JSON, one a line.
CREATE TABLE job_log (
  job_id uuid PRIMARY KEY NOT NULL,
  fence bigint NOT NULL,                     -- the attempt that wrote last
  at timestamptz NOT NULL,
  content text NOT NULL
);

-- `step` is a stage of a run; this is a piece of one job's handler that is done and stays done.
CREATE TABLE durable_step (
  job_id uuid NOT NULL,
  fence bigint NOT NULL,                     -- the attempt that did it
  at timestamptz NOT NULL,
  name text NOT NULL,
  result bytea,                              -- NULL: it returned None
  PRIMARY KEY (job_id, name)
);

-- A step is recorded by the attempt that holds its job, or it is forged: the next attempt would not do
-- what it says is done. Whoever writes may look at the job, so this needs no other rights.
CREATE FUNCTION milepost_refuse_step() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM job
                  WHERE id = NEW.job_id AND fence = NEW.fence AND state = 'RUNNING') THEN
    RAISE EXCEPTION USING ERRCODE = 'MP002',
      MESSAGE = format('milepost: job %s: step %s is recorded by the attempt that runs it, under its '
                       'fence', NEW.job_id, quote_literal(NEW.name));
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER durable_step_refuse AFTER INSERT OR UPDATE ON durable_step FOR EACH ROW
  EXECUTE FUNCTION milepost_refuse_step();

-- What a job gave is written by the attempt that runs, or by the transaction that ends it; then it is as
-- final as its result. Erasing takes it away, and so does retention, with its job.
CREATE FUNCTION milepost_refuse_output() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  ended uuid;
BEGIN
  SELECT job.id INTO ended
    FROM (SELECT DISTINCT job_id, fence FROM changed_rows) AS c
    JOIN job ON job.id = c.job_id AND job.fence = c.fence AND job.state = 'SUCCEEDED'
   WHERE NOT EXISTS (SELECT 1 FROM journal WHERE subject_id = job.id AND machine = 'job'
                        AND seq = job.version AND xid = pg_current_xact_id())
   LIMIT 1;
  IF ended IS NULL OR TG_OP = 'DELETE'
     AND has_table_privilege(session_user, to_regclass('retention')::oid, 'update') THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'MP002',
    MESSAGE = format('milepost: job %s has ended: what it gave never changes', ended);
END $$;

CREATE TRIGGER job_output_refuse_insert AFTER INSERT ON job_output
  REFERENCING NEW TABLE AS changed_rows FOR EACH STATEMENT EXECUTE FUNCTION milepost_refuse_output();
CREATE TRIGGER job_output_refuse_update AFTER UPDATE ON job_output
  REFERENCING NEW TABLE AS changed_rows FOR EACH STATEMENT EXECUTE FUNCTION milepost_refuse_output();
CREATE TRIGGER job_output_refuse_move AFTER UPDATE OF job_id, fence, seq ON job_output FOR EACH ROW
  WHEN (NEW.job_id <> OLD.job_id OR NEW.fence <> OLD.fence OR NEW.seq <> OLD.seq)
  EXECUTE FUNCTION milepost_refuse_hand();
CREATE TRIGGER job_output_refuse_delete AFTER DELETE ON job_output
  REFERENCING OLD TABLE AS changed_rows FOR EACH STATEMENT EXECUTE FUNCTION milepost_refuse_output();

-- How often `position` was saved: whoever saves names the number it read, so that no save is lost.
ALTER TABLE progress ADD COLUMN saves bigint NOT NULL DEFAULT 0;

-- They go with their job, whoever deletes it.
CREATE FUNCTION milepost_forget_context() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF (TG_RELID = to_regclass('job')) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a table that this function serves', TG_RELID::regclass;
  END IF;
  DELETE FROM durable_step USING old_rows WHERE durable_step.job_id = old_rows.id;
  DELETE FROM progress USING old_rows WHERE progress.job_id = old_rows.id;
  RETURN NULL;
END $$;

CREATE TRIGGER job_forget_context AFTER DELETE ON job
  REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_forget_context();
