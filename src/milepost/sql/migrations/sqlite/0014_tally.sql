-- What happened when, for charts: moves and durations of jobs, summed up by queue and kind.

-- How many jobs made a move. Workers count their own moves, and maintenance new jobs, by their rowids: a
-- trigger would cost each of them 5 %.
CREATE TABLE tally_delta (
  at INTEGER NOT NULL,
  count INTEGER NOT NULL,
  sum_us INTEGER NOT NULL DEFAULT 0,         -- of durations
  bucket INTEGER NOT NULL DEFAULT 0,         -- likewise: which one of the histogram
  name TEXT NOT NULL,                        -- a move; 'wait' and 'run' are durations; 'remove': the row is gone
  queue TEXT NOT NULL,
  kind TEXT NOT NULL
) STRICT;

-- Sums of a minute, of ten minutes or of an hour: as they age, maintenance moves them from one to the next.
CREATE TABLE tally (
  -- The columns of the key first, in its order: SQLite 3.40 (Debian 12) checks others as if they were.
  span INTEGER NOT NULL,                     -- in seconds
  at INTEGER NOT NULL,                       -- when the span begins
  queue TEXT NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  bucket INTEGER NOT NULL,
  count INTEGER NOT NULL,
  sum_us INTEGER NOT NULL,
  PRIMARY KEY (span, at, queue, kind, name, bucket)
) STRICT, WITHOUT ROWID;

-- The pairs that are counted by name; there is a limit to them, and all others share one.
CREATE TABLE tally_label (
  queue TEXT NOT NULL,
  kind TEXT NOT NULL,
  PRIMARY KEY (queue, kind)
) STRICT, WITHOUT ROWID;

-- How many jobs each queue holds, whatever their state, by what is folded already.
CREATE TABLE queue_total (
  queue TEXT PRIMARY KEY,
  count INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The last job that was counted as new: those after it have larger rowids, since there is one writer. VACUUM
-- gives rows other numbers; then the job at this number is another one, and all are counted again.
CREATE TABLE tally_mark (
  id INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
  number INTEGER NOT NULL DEFAULT 0,
  job_id TEXT
) STRICT;
INSERT INTO tally_mark DEFAULT VALUES;

-- A statement that sets none of these columns, as the claims and settlements of workers do, knows nothing of
-- this trigger; one that does not need them, and is to be counted, sets `queued_seq` to itself.
CREATE TRIGGER job_tally_move AFTER UPDATE OF queued_seq, cancel_reason, losses ON job
  WHEN NEW.state <> OLD.state
BEGIN
  INSERT INTO tally_delta (at, count, name, queue, kind)
  VALUES (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000
            + coalesce((SELECT offset_us FROM clock), 0),
          1, NEW.move, NEW.queue, NEW.kind);
END;
CREATE TRIGGER job_tally_delete AFTER DELETE ON job
  WHEN OLD.rowid <= (SELECT number FROM tally_mark)
BEGIN
  INSERT INTO tally_delta (at, count, name, queue, kind)
  VALUES (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000
            + coalesce((SELECT offset_us FROM clock), 0),
          1, 'remove', OLD.queue, OLD.kind);
  -- The next new job may get the same number.
  UPDATE tally_mark
     SET number = coalesce((SELECT max(rowid) FROM job WHERE rowid < OLD.rowid), 0),
         job_id = (SELECT id FROM job WHERE rowid < OLD.rowid ORDER BY rowid DESC LIMIT 1)
   WHERE number = OLD.rowid;
END;

-- How many attempts failed with the same error, by the hour: exactly those that `failure` holds. There is one
-- writer: nobody waits for a row of this.
CREATE TABLE failure_hour (
  fingerprint TEXT NOT NULL,
  at INTEGER NOT NULL,                       -- when the hour begins
  count INTEGER NOT NULL,
  PRIMARY KEY (fingerprint, at)
) STRICT, WITHOUT ROWID;
INSERT INTO failure_hour (at, count, fingerprint)
SELECT at / 3600000000 * 3600000000, count(*), fingerprint FROM failure GROUP BY 1, 3;

CREATE TRIGGER failure_count_insert AFTER INSERT ON failure
BEGIN
  INSERT INTO failure_hour (at, count, fingerprint)
  VALUES (NEW.at / 3600000000 * 3600000000, 1, NEW.fingerprint)
  ON CONFLICT (fingerprint, at) DO UPDATE SET count = failure_hour.count + 1;
END;
CREATE TRIGGER failure_count_delete AFTER DELETE ON failure
BEGIN
  UPDATE failure_hour SET count = count - 1
   WHERE fingerprint = OLD.fingerprint AND at = OLD.at / 3600000000 * 3600000000;
END;
