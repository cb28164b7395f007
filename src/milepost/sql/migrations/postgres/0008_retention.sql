-- Retention: finished jobs and runs leave after their time, whole: the row, what hangs on it, and its
-- entries in the journal, in one transaction. Nothing else lets an entry out.

DROP TRIGGER journal_refuse_change ON journal;
CREATE TRIGGER journal_refuse_change BEFORE UPDATE ON journal FOR EACH ROW
  EXECUTE FUNCTION milepost_refuse_hand();
-- As with what comes in: by our own trigger alone, and only while retention is at work.
CREATE TRIGGER journal_refuse_delete BEFORE DELETE ON journal FOR EACH ROW
  WHEN (pg_trigger_depth() = 0
        OR current_setting('milepost.retaining', true) IS DISTINCT FROM 'on')
  EXECUTE FUNCTION milepost_refuse_hand();

-- By the keys, whatever the planner believes of a table of old rows that it never saw: joined with
-- it, the journal was read whole for every batch.
CREATE FUNCTION milepost_forget() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
  SET enable_seqscan = off SET jit = off AS $$
DECLARE
  ids uuid[] := ARRAY(SELECT id FROM old_rows);
BEGIN
  IF (TG_RELID IN (to_regclass('job'), to_regclass('run'))) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a journalled table', TG_RELID::regclass;
  END IF;
  IF TG_TABLE_NAME = 'job' THEN
    DELETE FROM durable_step WHERE job_id = ANY (ids);
    DELETE FROM progress WHERE job_id = ANY (ids);
    DELETE FROM failure WHERE job_id = ANY (ids);
    DELETE FROM usage WHERE job_id = ANY (ids);
    DELETE FROM signal WHERE job_id = ANY (ids);
    DELETE FROM staged WHERE producer_id = ANY (ids);
    DELETE FROM publication WHERE producer_id = ANY (ids);
  END IF;
  IF current_setting('milepost.retaining', true) = 'on' THEN
    DELETE FROM outbox WHERE machine = TG_TABLE_NAME AND subject_id = ANY (ids);
    DELETE FROM journal WHERE subject_id = ANY (ids) AND machine = TG_TABLE_NAME;
  END IF;
  RETURN NULL;
END $$;

-- Without pg_temp at the end, anybody's temporary table would stand in for ours.
DO $do$ BEGIN
  EXECUTE format('ALTER FUNCTION milepost_forget() SET search_path = %I, pg_temp', current_schema());
END $do$;

REVOKE EXECUTE ON FUNCTION milepost_forget() FROM PUBLIC;

DROP TRIGGER job_forget_context ON job;
DROP FUNCTION milepost_forget_context();
CREATE TRIGGER job_forget AFTER DELETE ON job
  REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION milepost_forget();
CREATE TRIGGER run_forget AFTER DELETE ON run
  REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION milepost_forget();

-- A run that leaves takes its publications along; without this each would be looked for in all.
CREATE INDEX publication_run ON publication (run_id);
