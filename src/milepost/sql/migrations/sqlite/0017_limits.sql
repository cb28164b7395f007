-- Limits: how many jobs run at once, and how many start in a time. Nothing is stored about a job that a limit
-- keeps waiting: whether it may start is told by the live leases under its key, and by the key's bucket.

-- One row a rule. `scope` says what is counted: jobs of a rule by their key, a queue, a host of requests, a source.
-- What programs declared stands next to what is in force: people may set something else at runtime.
CREATE TABLE limit_rule (
  scope TEXT NOT NULL CHECK (scope IN ('job', 'queue', 'host', 'source')),
  name TEXT NOT NULL,
  most INTEGER CHECK (most >= 0),            -- so many at once; NULL: any number
  rate REAL CHECK (rate > 0),                -- so many units in `per_us`; NULL: any number
  per_us INTEGER CHECK (per_us > 0),
  burst REAL CHECK (burst > 0),              -- so many at once after a rest
  ordered INTEGER NOT NULL DEFAULT 0,        -- one at a time, in order, retries included
  units TEXT,                                -- what an attempt counts that is settled against its reservation
  declared TEXT,                             -- JSON: the newest declaration
  declared_at INTEGER,
  declared_before TEXT,                      -- JSON: the one that it took the place of
  set_at INTEGER,                            -- when somebody set it otherwise
  set_by TEXT,
  reason TEXT,
  PRIMARY KEY (scope, name),
  CHECK ((rate IS NULL) = (per_us IS NULL) AND (rate IS NULL) = (burst IS NULL))
) STRICT;

-- When the next unit of a key is free, as GCRA has it: ahead of now by what was taken and not yet earned.
CREATE TABLE bucket (
  scope TEXT NOT NULL,
  key TEXT NOT NULL,
  free_at INTEGER NOT NULL,
  PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX bucket_free ON bucket (free_at);

-- Who changed a rule, to what, and why.
CREATE TABLE limit_change (
  n INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  scope TEXT NOT NULL,
  name TEXT NOT NULL,
  before TEXT,                               -- JSON: what was in force
  after TEXT,
  key TEXT,                                -- whose bucket was cleared, which is no change of the rule
  free_at INTEGER,                           -- when that would have been full again
  actor TEXT,
  reason TEXT
) STRICT;
CREATE TRIGGER limit_change_refuse_update BEFORE UPDATE ON limit_change BEGIN
  SELECT RAISE(ABORT, 'milepost: a change of a limit stays as it was written');
END;
CREATE TRIGGER limit_change_refuse_delete BEFORE DELETE ON limit_change BEGIN
  SELECT RAISE(ABORT, 'milepost: a change of a limit stays as it was written');
END;
CREATE TRIGGER limit_change_refuse_replace BEFORE INSERT ON limit_change
  WHEN EXISTS (SELECT 1 FROM limit_change WHERE n = NEW.n) BEGIN
  SELECT RAISE(ABORT, 'milepost: a change of a limit stays as it was written');
END;
