-- Retention: finished jobs and runs leave after their time, whole: the row, what hangs on it, and its
-- entries in the journal, in one transaction. What is still there after long has the old part of its
-- history summed up: one entry, the snapshot, in place of many. Nothing else lets an entry out.

-- `active` is on while a transaction of retention is at work; nobody else ever sees it on.
-- `keeping_entries` says then that a row leaves and its entries stay. `least_us` is how old anything is at
-- least that retention removes or sums up.
CREATE TABLE retention (
  id INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
  active INTEGER NOT NULL DEFAULT 0,
  keeping_entries INTEGER NOT NULL DEFAULT 0,
  least_us INTEGER NOT NULL DEFAULT 3600000000 CHECK (least_us >= 0),
  set_at INTEGER,
  set_by TEXT
) STRICT;
INSERT INTO retention DEFAULT VALUES;

-- An entry that was written after that is too young to leave.
CREATE VIEW retention_edge AS
SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + coalesce((SELECT offset_us FROM clock), 0)
       - coalesce((SELECT least_us FROM retention), 3600000000) AS oldest_kept;

-- Even then an entry leaves only after its row, or after a snapshot has summed it up.
DROP TRIGGER journal_refuse_delete;
CREATE TRIGGER journal_refuse_delete BEFORE DELETE ON journal
  WHEN coalesce((SELECT active FROM retention), 0) <> 1
    OR CASE OLD.machine WHEN 'job' THEN EXISTS (SELECT 1 FROM job WHERE id = OLD.subject_id)
                        WHEN 'run' THEN EXISTS (SELECT 1 FROM run WHERE id = OLD.subject_id)
                        ELSE true END
       AND NOT EXISTS (SELECT 1 FROM journal
                        WHERE subject_id = OLD.subject_id AND machine = OLD.machine
                          AND seq > OLD.seq AND move = 'snapshot')
    OR OLD.move <> 'erase' AND OLD.at > (SELECT oldest_kept FROM retention_edge)
BEGIN
  SELECT RAISE(ABORT, 'milepost: journal: its entries leave by retention alone');
END;

-- What each entry of a job's journal and all before it come to, as a snapshot in its place tells it.
CREATE VIEW journal_summary AS
SELECT last.subject_id, last.seq, (
       SELECT json_object(
                'moves', sum(CASE e.move WHEN 'snapshot' THEN json_extract(e.detail, '$.moves') ELSE 1 END),
                'since', coalesce(
                  max(CASE e.move WHEN 'snapshot' THEN json_extract(e.detail, '$.since') END), min(e.at)),
                'errors', sum(CASE WHEN e.move IN ('retry', 'fail') THEN 1
                                   WHEN e.move = 'snapshot' THEN json_extract(e.detail, '$.errors') ELSE 0 END),
                'losses', sum(CASE e.move WHEN 'lose' THEN 1
                                   WHEN 'snapshot' THEN json_extract(e.detail, '$.losses') ELSE 0 END),
                'polls', sum(CASE e.move WHEN 'later' THEN 1
                                  WHEN 'snapshot' THEN json_extract(e.detail, '$.polls') ELSE 0 END),
                'releases', sum(CASE e.move WHEN 'release' THEN 1
                                     WHEN 'snapshot' THEN json_extract(e.detail, '$.releases') ELSE 0 END),
                'worker', (SELECT CASE c.move WHEN 'claim' THEN c.actor
                                              ELSE json_extract(c.detail, '$.worker') END
                             FROM journal c
                            WHERE c.subject_id = last.subject_id AND c.machine = 'job' AND c.seq <= last.seq
                              AND c.move IN ('claim', 'snapshot')
                            ORDER BY c.seq DESC LIMIT 1),
                'move', last.move, 'detail', last.detail)
         FROM journal e
        WHERE e.subject_id = last.subject_id AND e.machine = 'job' AND e.seq <= last.seq) AS told
  FROM journal AS last
 WHERE last.machine = 'job';

-- And an entry becomes the snapshot of itself and all before it only if that says what they say.
DROP TRIGGER journal_refuse_update;
CREATE TRIGGER journal_refuse_update BEFORE UPDATE ON journal
  WHEN ((SELECT active FROM retention) = 1
        AND OLD.move <> 'snapshot' AND NEW.move = 'snapshot' AND NEW.from_state IS NULL
        AND NEW.machine = 'job'
        AND NEW.subject_id = OLD.subject_id AND NEW.machine = OLD.machine AND NEW.seq = OLD.seq
        AND NEW.at = OLD.at AND NEW.fence = OLD.fence AND NEW.to_state = OLD.to_state
        AND NEW.actor IS OLD.actor AND OLD.at <= (SELECT oldest_kept FROM retention_edge)
        AND NEW.detail = (SELECT told FROM journal_summary
                           WHERE subject_id = OLD.subject_id AND seq = OLD.seq)) IS NOT TRUE
BEGIN
  SELECT RAISE(ABORT, 'milepost: journal: its entries never change');
END;

DROP TRIGGER job_forget_context;
CREATE TRIGGER job_forget AFTER DELETE ON job
BEGIN
  DELETE FROM durable_step WHERE job_id = OLD.id;
  DELETE FROM progress WHERE job_id = OLD.id;
  DELETE FROM failure WHERE job_id = OLD.id;
  DELETE FROM job_log WHERE job_id = OLD.id;
  DELETE FROM usage WHERE job_id = OLD.id;
  DELETE FROM signal WHERE job_id = OLD.id;
  DELETE FROM staged WHERE producer_id = OLD.id;
  DELETE FROM publication WHERE producer_id = OLD.id;
  DELETE FROM job_output WHERE job_id = OLD.id;
END;
CREATE TRIGGER job_forget_journal AFTER DELETE ON job WHEN (SELECT active FROM retention) = 1
BEGIN
  DELETE FROM outbox WHERE machine = 'job' AND subject_id = OLD.id;
  DELETE FROM journal WHERE subject_id = OLD.id AND machine = 'job'
    AND (SELECT keeping_entries FROM retention) = 0;
END;
-- By the journal's own times: those of the row are whatever its writer said.
CREATE TRIGGER job_refuse_young BEFORE DELETE ON job WHEN (SELECT active FROM retention) = 1
  AND EXISTS (SELECT 1 FROM journal
               WHERE subject_id = OLD.id AND machine = 'job' AND move <> 'erase'
                 AND at > (SELECT oldest_kept FROM retention_edge))
BEGIN
  SELECT RAISE(ABORT, 'milepost: job: it ended too short a time ago to be removed; milepost retention set --min changes it');
END;
CREATE TRIGGER run_refuse_young BEFORE DELETE ON run WHEN (SELECT active FROM retention) = 1
  AND EXISTS (SELECT 1 FROM journal
               WHERE subject_id = OLD.id AND machine = 'run' AND move <> 'erase'
                 AND at > (SELECT oldest_kept FROM retention_edge))
BEGIN
  SELECT RAISE(ABORT, 'milepost: run: it ended too short a time ago to be removed; milepost retention set --min changes it');
END;
CREATE TRIGGER run_refuse_left BEFORE DELETE ON run
  WHEN EXISTS (SELECT 1 FROM job WHERE run_id = OLD.id)
BEGIN
  SELECT RAISE(ABORT, 'milepost: run: its jobs leave first');
END;
CREATE TRIGGER run_forget_journal AFTER DELETE ON run WHEN (SELECT active FROM retention) = 1
BEGIN
  DELETE FROM outbox WHERE machine = 'run' AND subject_id = OLD.id;
  DELETE FROM journal WHERE subject_id = OLD.id AND machine = 'run'
    AND (SELECT keeping_entries FROM retention) = 0;
END;

-- A run that leaves takes its publications along; without this each would be looked for in all.
CREATE INDEX publication_run ON publication (run_id);
