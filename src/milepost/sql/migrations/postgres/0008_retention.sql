-- Retention: finished jobs and runs leave after their time, whole: the row, what hangs on it, and its
-- entries in the journal, in one transaction. What is still there after long has the old part of its
-- history summed up: one entry, the snapshot, in place of many. Nothing else lets an entry out.

-- How old anything is at least that retention removes or sums up. Whoever may delete rows (a worker may)
-- cannot write this, so nothing younger is ever lost to one.
CREATE TABLE retention (
  id integer PRIMARY KEY DEFAULT 1 CHECK (id = 1),
  least_us bigint NOT NULL DEFAULT 3600000000 CHECK (least_us >= 0),
  set_at timestamptz,
  set_by text
);
INSERT INTO retention DEFAULT VALUES;

-- An entry becomes the snapshot of itself and all before it; where it stands stays as it was.
DROP TRIGGER journal_refuse_change ON journal;
CREATE TRIGGER journal_refuse_change BEFORE UPDATE ON journal FOR EACH ROW
  WHEN (pg_trigger_depth() = 0
        OR current_setting('milepost.retaining', true) IS DISTINCT FROM 'on'
        OR OLD.move = 'snapshot' OR NEW.move <> 'snapshot' OR NEW.from_state IS NOT NULL
        OR NEW.subject_id <> OLD.subject_id OR NEW.machine <> OLD.machine OR NEW.seq <> OLD.seq
        OR NEW.at <> OLD.at OR NEW.fence <> OLD.fence OR NEW.to_state <> OLD.to_state
        OR NEW.actor IS DISTINCT FROM OLD.actor OR NEW.db_user IS DISTINCT FROM OLD.db_user)
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
  ids uuid[];
  oldest_kept timestamptz := milepost_now()
    - coalesce((SELECT least_us FROM retention), 3600000000) * interval '1 microsecond';
BEGIN
  IF (TG_RELID IN (to_regclass('job'), to_regclass('run'))) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a table that this function serves', TG_RELID::regclass;
  END IF;
  ids := ARRAY(SELECT id FROM old_rows);
  -- By the journal's own times: those of the row are whatever its writer said.
  IF current_setting('milepost.retaining', true) = 'on' THEN
    IF EXISTS (SELECT 1 FROM journal WHERE subject_id = ANY (ids) AND machine = TG_TABLE_NAME
                  AND move <> 'erase' AND at > oldest_kept) THEN
      RAISE EXCEPTION USING ERRCODE = 'MP002',
        MESSAGE = format('milepost: %s: one of these ended less than %s ago: too young to be removed',
                         TG_TABLE_NAME, milepost_now() - oldest_kept),
        HINT = 'milepost retention set --min changes it, as admin';
    END IF;
  ELSIF ids <> '{}' AND NOT pg_has_role(session_user, current_user, 'member') THEN
    RAISE EXCEPTION USING ERRCODE = 'MP002',
      MESSAGE = format('milepost: %s %s: it leaves by retention, or by the hand of the tables'' owner',
                       TG_TABLE_NAME, ids[1]);
  END IF;
  IF TG_TABLE_NAME = 'job' THEN
    DELETE FROM durable_step WHERE job_id = ANY (ids);
    DELETE FROM progress WHERE job_id = ANY (ids);
    DELETE FROM failure WHERE job_id = ANY (ids);
    DELETE FROM job_log WHERE job_id = ANY (ids);
    DELETE FROM usage WHERE job_id = ANY (ids);
    DELETE FROM signal WHERE job_id = ANY (ids);
    DELETE FROM staged WHERE producer_id = ANY (ids);
    DELETE FROM publication WHERE producer_id = ANY (ids);
    DELETE FROM job_output WHERE job_id = ANY (ids);
    INSERT INTO tally_delta (at, count, name, queue, kind)
    SELECT milepost_now(), count(*), 'remove', queue, kind FROM old_rows GROUP BY queue, kind;
  ELSIF EXISTS (SELECT 1 FROM unnest(ids) AS gone (id) JOIN job ON job.run_id = gone.id) THEN
    RAISE EXCEPTION USING ERRCODE = 'MP001',
      MESSAGE = format('milepost: run %s: its jobs leave first', (
        SELECT min(job.run_id::text) FROM unnest(ids) AS gone (id) JOIN job ON job.run_id = gone.id));
  END IF;
  IF current_setting('milepost.retaining', true) = 'on' THEN
    DELETE FROM outbox WHERE machine = TG_TABLE_NAME AND subject_id = ANY (ids);
    IF current_setting('milepost.keeping_entries', true) IS DISTINCT FROM 'on' THEN
      DELETE FROM journal WHERE subject_id = ANY (ids) AND machine = TG_TABLE_NAME;
    END IF;
  END IF;
  RETURN NULL;
END $$;

DROP TRIGGER job_forget_context ON job;
DROP FUNCTION milepost_forget_context();
CREATE TRIGGER job_forget AFTER DELETE ON job
  REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION milepost_forget();
CREATE TRIGGER run_forget AFTER DELETE ON run
  REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION milepost_forget();

-- A run that leaves takes its publications along; without this each would be looked for in all.
CREATE INDEX publication_run ON publication (run_id);

-- Lets go of the entries of a job or run that has left, if it had ended and all are older than a time;
-- answers with how many are gone. A history without an end stays: somebody made its row vanish.
CREATE FUNCTION milepost_forget_entries(subject uuid, before timestamptz) RETURNS integer
  LANGUAGE plpgsql
  SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
  gone integer;
BEGIN
  DELETE FROM journal
   WHERE subject_id = subject AND machine IN ('job', 'run')
     AND NOT EXISTS (SELECT 1 FROM job WHERE id = subject)
     AND NOT EXISTS (SELECT 1 FROM run WHERE id = subject)
     AND NOT EXISTS (SELECT 1 FROM journal AS young
                      WHERE young.subject_id = subject AND young.move <> 'erase' AND young.at > before)
     AND (SELECT last.to_state FROM journal AS last WHERE last.subject_id = subject
           ORDER BY last.machine, last.seq DESC LIMIT 1) IN ('SUCCEEDED', 'FAILED', 'CANCELLED');
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END $$;

-- Old history

-- Sums up what a job's history has before a time, at most so many entries at once; answers with how
-- many are gone. What it says is counted from the entries, never copied from the row: it must not
-- make a wrong row right. A row that leaves it to the journal when it started or ended (decision 2)
-- keeps its whole history.
CREATE FUNCTION milepost_sum_up(subject uuid, before timestamptz, most integer) RETURNS integer
  LANGUAGE plpgsql
  SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
  upto integer;
  gone integer;
BEGIN
  PERFORM 1 FROM job
    WHERE id = subject
      AND (started_at IS NOT NULL OR fence = 0)
      AND (finished_at IS NOT NULL OR state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED'))
      AND move <> 'erase'
      FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN 0;
  END IF;
  SELECT CASE WHEN count(*) > 1 THEN max(seq) END INTO upto
    FROM (SELECT seq, at FROM journal WHERE subject_id = subject AND machine = 'job'
           ORDER BY seq LIMIT most + 1) AS oldest
   WHERE at < before;
  IF upto IS NULL THEN
    RETURN 0;
  END IF;
  UPDATE journal
     SET move = 'snapshot', from_state = NULL, detail = (
         SELECT json_build_object(
                  'moves', sum(CASE move WHEN 'snapshot' THEN (detail::json ->> 'moves')::integer ELSE 1 END),
                  'since', coalesce(
                    max(CASE move WHEN 'snapshot' THEN (detail::json ->> 'since')::bigint END),
                    (extract(epoch FROM min(at)) * 1000000)::bigint),
                  'errors', sum(CASE WHEN move IN ('retry', 'fail') THEN 1
                                     WHEN move = 'snapshot' THEN (detail::json ->> 'errors')::integer ELSE 0 END),
                  'losses', sum(CASE move WHEN 'lose' THEN 1
                                     WHEN 'snapshot' THEN (detail::json ->> 'losses')::integer ELSE 0 END),
                  'polls', sum(CASE move WHEN 'later' THEN 1
                                    WHEN 'snapshot' THEN (detail::json ->> 'polls')::integer ELSE 0 END),
                  'releases', sum(CASE move WHEN 'release' THEN 1
                                       WHEN 'snapshot' THEN (detail::json ->> 'releases')::integer ELSE 0 END),
                  'worker', (SELECT CASE move WHEN 'claim' THEN actor ELSE detail::json ->> 'worker' END
                               FROM journal
                              WHERE subject_id = subject AND machine = 'job' AND seq <= upto
                                AND move IN ('claim', 'snapshot')
                              ORDER BY seq DESC LIMIT 1),
                  'move', last.move, 'detail', last.detail)::text
           FROM journal
          WHERE subject_id = subject AND machine = 'job' AND seq <= upto)
    FROM (SELECT move, detail FROM journal
           WHERE subject_id = subject AND machine = 'job' AND seq = upto) AS last
   WHERE subject_id = subject AND machine = 'job' AND seq = upto;
  DELETE FROM journal WHERE subject_id = subject AND machine = 'job' AND seq < upto;
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END $$;

-- Weeks

-- The journal has a partition for each week of creation, named by its Monday: `journal_20261116`. What
-- fits into none is in the default one.

-- How large the default partition may be for a week still to be made: an attach reads all of it.
CREATE FUNCTION milepost_default_most() RETURNS bigint LANGUAGE sql IMMUTABLE AS
  'SELECT 256::bigint * 1024 * 1024';

-- How large it is; not known while somebody holds it for long, as VACUUM FULL does.
CREATE FUNCTION milepost_default_size() RETURNS bigint LANGUAGE plpgsql STABLE
  SET lock_timeout = '200ms' AS $$
BEGIN
  RETURN pg_relation_size('journal_default');
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;
END $$;

-- Makes the week that begins on a Monday; false where it is there. A week of which the default
-- partition already has entries stays there.
CREATE FUNCTION milepost_make_week(monday timestamp) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  name text := 'journal_' || to_char(monday, 'yyyymmdd');
  low uuid := (rpad(lpad(to_hex((extract(epoch FROM monday) * 1000)::bigint), 12, '0'), 32, '0'))::uuid;
  high uuid := (rpad(lpad(to_hex((extract(epoch FROM monday + interval '7 days') * 1000)::bigint), 12, '0'),
                     32, '0'))::uuid;
BEGIN
  IF to_regclass(name) IS NOT NULL
     OR EXISTS (SELECT 1 FROM journal_default WHERE subject_id >= low AND subject_id < high) THEN
    RETURN false;
  END IF;
  EXECUTE format('CREATE TABLE %I (LIKE journal INCLUDING ALL)', name);
  -- Triggers for each row come with the parent; this one does not.
  EXECUTE format('CREATE TRIGGER journal_refuse_truncate BEFORE TRUNCATE ON %I FOR EACH STATEMENT'
                 ' EXECUTE FUNCTION milepost_refuse_hand()', name);
  EXECUTE format('ALTER TABLE journal ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', name, low, high);
  RETURN true;
END $$;

-- Makes this week's and so many of the next. Nobody waits for it long: it asks for its locks briefly,
-- and another pass tries again. Where the default partition has grown so large that to look through it
-- would take long, none is made.
CREATE FUNCTION milepost_make_weeks(ahead integer) RETURNS integer LANGUAGE plpgsql
  SET lock_timeout = '200ms' AS $$
DECLARE
  monday timestamp;
  made integer := 0;
BEGIN
  IF (milepost_default_size() <= milepost_default_most()) IS NOT TRUE
     OR NOT pg_try_advisory_xact_lock(hashtext('milepost journal'), 'journal'::regclass::oid::integer) THEN
    RETURN 0;
  END IF;
  FOR week IN 0..ahead LOOP
    monday := date_trunc('week', milepost_now() AT TIME ZONE 'utc') + week * interval '7 days';
    BEGIN
      made := made + milepost_make_week(monday)::integer;
    EXCEPTION WHEN lock_not_available OR query_canceled OR check_violation THEN
      RETURN made;
    END;
  END LOOP;
  RETURN made;
END $$;

-- Drops the oldest week that ended before a time and of which at most so many entries are left; they
-- move to the default partition as they are. Whoever moves a job meanwhile waits for these
-- few milliseconds; and this gives up at once where others hold the journal for longer.
CREATE FUNCTION milepost_drop_week(before timestamptz, most integer) RETURNS integer
  LANGUAGE plpgsql
  SET lock_timeout = '200ms' SET enable_seqscan = off SET jit = off AS $$
DECLARE
  name text;
  kept integer;
BEGIN
  IF NOT pg_try_advisory_xact_lock(hashtext('milepost journal'), 'journal'::regclass::oid::integer) THEN
    RETURN 0;
  END IF;
  FOR name IN
    SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
     WHERE inhparent = 'journal'::regclass
       AND CASE WHEN relname ~ '^journal_[0-9]{8}$'
                THEN to_date(substr(relname, 9), 'yyyymmdd') + 7 <= before AT TIME ZONE 'utc' END
     ORDER BY relname
  LOOP
    BEGIN
      -- To count waits for locks, too, and a hand may have dropped it by now.
      EXECUTE format('SELECT count(*) FROM (SELECT FROM %I ORDER BY subject_id, machine, seq LIMIT $1)'
                     ' AS left_over', name) INTO kept USING most + 1;
      CONTINUE WHEN kept > most;
      LOCK TABLE ONLY journal IN ACCESS EXCLUSIVE MODE;
      EXECUTE format('ALTER TABLE journal DETACH PARTITION %I', name);
      EXECUTE format(
        'INSERT INTO journal (subject_id, at, fence, seq, machine, move, from_state, to_state, actor,'
        ' detail, db_user, xid)'
        ' SELECT subject_id, at, fence, seq, machine, move, from_state, to_state, actor, detail, db_user, xid'
        ' FROM %I', name);
      EXECUTE format('DROP TABLE %I', name);
      RETURN 1;
    EXCEPTION WHEN lock_not_available OR query_canceled OR undefined_table THEN
      RETURN 0;
    END;
  END LOOP;
  RETURN 0;
END $$;

-- How retention asks for these. It is a view, so that who may ask is a matter of grants, as with every
-- table; the trigger has its owner's rights, so that whoever asks needs none on the journal.
CREATE VIEW journal_upkeep AS
SELECT NULL::text AS task, NULL::uuid AS subject_id, NULL::timestamptz AS before,
       NULL::integer AS most, NULL::integer AS done
 WHERE false;

CREATE FUNCTION milepost_upkeep() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  journalling text := current_setting('milepost.journalling', true);
  pass text;
  before timestamptz;
BEGIN
  IF (TG_RELID = to_regclass('journal_upkeep')) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a table that this function serves', TG_RELID::regclass;
  END IF;
  IF current_setting('milepost.retaining', true) IS DISTINCT FROM 'on' THEN
    RAISE EXCEPTION USING ERRCODE = 'MP002',
      MESSAGE = 'milepost: journal: its entries are summed up by retention alone';
  END IF;
  before := least(NEW.before, milepost_now()
    - coalesce((SELECT least_us FROM retention), 3600000000) * interval '1 microsecond');
  pass := set_config('milepost.journalling', 'on', true);
  NEW.done := CASE NEW.task
                WHEN 'sum up' THEN milepost_sum_up(NEW.subject_id, before, NEW.most)
                WHEN 'forget' THEN milepost_forget_entries(NEW.subject_id, before)
                WHEN 'make weeks' THEN milepost_make_weeks(NEW.most)
                WHEN 'drop a week' THEN milepost_drop_week(before, NEW.most)
                ELSE 0 END;
  pass := set_config('milepost.journalling', coalesce(journalling, ''), true);
  IF NEW.done > 0 THEN
    RETURN NEW;
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER journal_upkeep_do INSTEAD OF INSERT ON journal_upkeep FOR EACH ROW
  EXECUTE FUNCTION milepost_upkeep();

DO $do$ BEGIN
  PERFORM milepost_make_weeks(2);
END $do$;
