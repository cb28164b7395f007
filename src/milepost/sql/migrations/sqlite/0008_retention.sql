-- Retention: finished jobs and runs leave after their time, whole: the row, what hangs on it, and its
-- entries in the journal, in one transaction. Nothing else lets an entry out.

-- On while a transaction of retention is at work; nobody else ever sees it on.
CREATE TABLE retention (
  id INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
  active INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO retention DEFAULT VALUES;

-- Even then an entry leaves only after its row.
DROP TRIGGER journal_refuse_delete;
CREATE TRIGGER journal_refuse_delete BEFORE DELETE ON journal
  WHEN coalesce((SELECT active FROM retention), 0) <> 1
    OR CASE OLD.machine WHEN 'job' THEN EXISTS (SELECT 1 FROM job WHERE id = OLD.subject_id)
                        WHEN 'run' THEN EXISTS (SELECT 1 FROM run WHERE id = OLD.subject_id)
                        ELSE true END
BEGIN
  SELECT RAISE(ABORT, 'milepost: journal: its entries leave by retention alone');
END;

DROP TRIGGER job_forget_context;
CREATE TRIGGER job_forget AFTER DELETE ON job
BEGIN
  DELETE FROM durable_step WHERE job_id = OLD.id;
  DELETE FROM progress WHERE job_id = OLD.id;
  DELETE FROM failure WHERE job_id = OLD.id;
  DELETE FROM usage WHERE job_id = OLD.id;
  DELETE FROM signal WHERE job_id = OLD.id;
  DELETE FROM staged WHERE producer_id = OLD.id;
  DELETE FROM publication WHERE producer_id = OLD.id;
END;
CREATE TRIGGER job_forget_journal AFTER DELETE ON job WHEN (SELECT active FROM retention) = 1
BEGIN
  DELETE FROM outbox WHERE machine = 'job' AND subject_id = OLD.id;
  DELETE FROM journal WHERE subject_id = OLD.id AND machine = 'job';
END;
CREATE TRIGGER run_forget_journal AFTER DELETE ON run WHEN (SELECT active FROM retention) = 1
BEGIN
  DELETE FROM outbox WHERE machine = 'run' AND subject_id = OLD.id;
  DELETE FROM journal WHERE subject_id = OLD.id AND machine = 'run';
END;

-- A run that leaves takes its publications along; without this each would be looked for in all.
CREATE INDEX publication_run ON publication (run_id);
