-- Pipelines: what was read of a source, how far, by which page, and what could not be used.

-- A watermark is a whole number: microseconds since 1970, or the source's own sequence.
CREATE TABLE pipeline (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  mark INTEGER,                              -- NULL: nothing was ever read to its end
  measure TEXT NOT NULL DEFAULT 'time' CHECK (measure IN ('time', 'sequence')),
  target TEXT NOT NULL,
  last_run_id TEXT,
  last_run_completed_at INTEGER,
  dataset_version INTEGER NOT NULL DEFAULT 0, -- grows with every run that ended well (H-85)
  version INTEGER NOT NULL DEFAULT 0,        -- grows with every move of the watermark
  runs INTEGER NOT NULL DEFAULT 0,           -- how many runs were started: their order
  made_with INTEGER,                         -- rules and mapping of the last run that ended well
  behind INTEGER NOT NULL DEFAULT 0,         -- records that were made with anything else, then
  queue TEXT NOT NULL DEFAULT 'default',
  channel TEXT,
  fresh_us INTEGER,                          -- how old the watermark may grow before it is told
  stale_at INTEGER,                          -- since when it is told; NULL while it is fresh
  move TEXT NOT NULL DEFAULT 'create' CHECK (move IN ('create', 'advance', 'override')),
  actor TEXT,
  reason TEXT,
  rules_digest TEXT,
  created_at INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)
) STRICT;

-- What the watermark of a pipeline was, and who moved it: written by the trigger alone.
CREATE TABLE watermark_entry (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  pipeline_id INTEGER NOT NULL,
  move TEXT NOT NULL,
  from_mark INTEGER,
  to_mark INTEGER,
  run_id TEXT,
  actor TEXT,
  reason TEXT,
  at INTEGER NOT NULL
) STRICT;
CREATE INDEX watermark_entry_pipeline ON watermark_entry (pipeline_id, seq);

CREATE TRIGGER pipeline_a_refuse AFTER UPDATE ON pipeline
  WHEN NEW.mark IS NOT OLD.mark AND (NEW.version <> OLD.version + 1 OR NEW.move <> 'override'
   AND (NEW.move <> 'advance' OR NEW.mark IS NULL OR NEW.mark < OLD.mark))
BEGIN
  SELECT RAISE(ABORT, 'milepost: the watermark never goes back but by an override: milepost pipelines watermark --set');
END;
CREATE TRIGGER pipeline_watermark AFTER UPDATE ON pipeline WHEN NEW.mark IS NOT OLD.mark
BEGIN
  INSERT INTO watermark_entry (pipeline_id, move, from_mark, to_mark, run_id, actor, reason, at)
  VALUES (NEW.id, NEW.move, OLD.mark, NEW.mark,
          CASE WHEN NEW.move = 'advance' THEN NEW.last_run_id END, NEW.actor, NEW.reason,
          CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + (SELECT offset_us FROM clock));
END;

-- What a run of a pipeline is about. Runs that go on with one another share a root.
CREATE TABLE pipeline_run (
  run_id TEXT PRIMARY KEY REFERENCES run (id) ON DELETE CASCADE,
  root_id TEXT NOT NULL,
  pipeline_id INTEGER NOT NULL REFERENCES pipeline (id),
  number INTEGER NOT NULL,                   -- the order of a pipeline's runs, by the database
  mode TEXT NOT NULL,                        -- full, incremental, backfill, forced, retry, replay, remap
  before_mark INTEGER,                       -- the watermark it found: what it compares and sets
  start_mark INTEGER,                        -- NULL: from the beginning
  end_mark INTEGER,                          -- fixed before the first read (H-69)
  after_mark INTEGER,                        -- what its end made of the watermark
  overlap INTEGER NOT NULL DEFAULT 0,
  margin INTEGER NOT NULL DEFAULT 0,
  counted INTEGER,
  calls INTEGER,
  missing INTEGER,
  planned_at INTEGER,
  plan TEXT,
  rules_digest TEXT,
  rules BLOB                                 -- pinned to the run (H-86)
) STRICT;
CREATE INDEX pipeline_run_root ON pipeline_run (root_id);
CREATE UNIQUE INDEX pipeline_run_latest ON pipeline_run (pipeline_id, number);

-- What a root set out to read: one row for each partition, closed with its last page (H-71).
CREATE TABLE reading (
  root_id TEXT NOT NULL,
  ordinal INTEGER NOT NULL,
  pipeline_id INTEGER NOT NULL,
  low TEXT,
  high TEXT,
  start_mark INTEGER,
  end_mark INTEGER NOT NULL,
  closed_at INTEGER,
  covered_by TEXT,                           -- a later run that read all of it
  PRIMARY KEY (root_id, ordinal)
) STRICT;
CREATE INDEX reading_open ON reading (pipeline_id) WHERE closed_at IS NULL AND covered_by IS NULL;

-- One row for each page that was applied: its number exists once (I13).
CREATE TABLE page (
  root_id TEXT NOT NULL,
  ordinal INTEGER NOT NULL,
  number INTEGER NOT NULL,
  job_id TEXT NOT NULL,
  records INTEGER NOT NULL,
  fresh INTEGER NOT NULL,
  changed INTEGER NOT NULL,
  unchanged INTEGER NOT NULL,
  pending INTEGER NOT NULL,                  -- records that are not consolidated yet
  keys TEXT,                                 -- their keys
  gone TEXT,                                 -- what the source says was deleted; applied last
  taken_by TEXT,                             -- the consolidating job that works on it
  taken_fence INTEGER,
  at INTEGER NOT NULL,
  PRIMARY KEY (root_id, ordinal, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX page_pending ON page (root_id, ordinal, number) WHERE pending > 0;

-- What the source said last of each of its records. `fate` is what the last sight of it was:
-- 0 new, 1 changed, 2 the same, 3 older than what is here; 4: what is here maps to a deletion;
-- 5: a tombstone with a version removed it.
CREATE TABLE raw (
  pipeline_id INTEGER NOT NULL,
  key TEXT NOT NULL,
  version INTEGER NOT NULL,
  hash BLOB NOT NULL,
  root_id TEXT NOT NULL,                     -- the run that saw it last, changed or not (H-84)
  seen INTEGER NOT NULL,                     -- the number of the latest run that saw it
  ordinal INTEGER NOT NULL,
  fate INTEGER NOT NULL DEFAULT 0,
  removed_by TEXT,
  missing_in TEXT,                           -- a full run did not see it; not removed yet
  payload BLOB NOT NULL,
  PRIMARY KEY (pipeline_id, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX raw_removed ON raw (pipeline_id, removed_by) WHERE removed_by IS NOT NULL;
CREATE INDEX raw_missing ON raw (pipeline_id) WHERE missing_in IS NOT NULL;

-- What an operator decided of the records that a full run did not see, when they were too many.
CREATE TABLE removal_decision (
  pipeline_id INTEGER NOT NULL REFERENCES pipeline (id),
  root_id TEXT NOT NULL,
  decision TEXT NOT NULL CHECK (decision IN ('confirmed', 'dismissed')),
  records INTEGER NOT NULL,
  actor TEXT NOT NULL,
  reason TEXT NOT NULL,
  at INTEGER NOT NULL,
  PRIMARY KEY (pipeline_id, root_id, decision)
) STRICT, WITHOUT ROWID;

-- Which pipeline a table is one of, and which it was one of before: one at a time. Names that differ in
-- case alone are one table.
CREATE TABLE pipeline_table (
  id INTEGER PRIMARY KEY,
  pipeline_id INTEGER REFERENCES pipeline (id), -- NULL: no pipeline of this store had it
  name TEXT NOT NULL,
  filled INTEGER NOT NULL DEFAULT 0,         -- it holds whatever its pipeline has landed
  claimed_at INTEGER NOT NULL,
  released_at INTEGER,                       -- NULL: it is the pipeline's
  actor TEXT,                                -- who released it, and why
  reason TEXT
) STRICT;
CREATE UNIQUE INDEX pipeline_table_held ON pipeline_table (lower(name)) WHERE released_at IS NULL;

CREATE TABLE quarantine (
  pipeline_id INTEGER NOT NULL,
  key TEXT NOT NULL,
  root_id TEXT NOT NULL,
  version INTEGER NOT NULL,
  type TEXT NOT NULL,
  reason TEXT NOT NULL,
  payload BLOB NOT NULL,
  at INTEGER NOT NULL,
  resolved_at INTEGER,
  PRIMARY KEY (pipeline_id, key, root_id)
) STRICT;
CREATE INDEX quarantine_root ON quarantine (root_id);
CREATE INDEX quarantine_open ON quarantine (pipeline_id, key) WHERE resolved_at IS NULL;

-- A pause that a source asked for, and its login, for whoever calls (H-89). Its rate is a limit: see 0017.
CREATE TABLE source_budget (
  name TEXT PRIMARY KEY,
  blocked_until INTEGER NOT NULL,
  login_until INTEGER,                       -- somebody logs in, and the others wait so long
  logins INTEGER NOT NULL DEFAULT 0,
  session BLOB                               -- what the last login gave, for everybody (H-90)
) STRICT;

ALTER TABLE progress ADD COLUMN done INTEGER NOT NULL DEFAULT 0;
ALTER TABLE progress ADD COLUMN duplicates INTEGER NOT NULL DEFAULT 0;
ALTER TABLE progress ADD COLUMN completions INTEGER NOT NULL DEFAULT 0;

-- Pages and readings go with the run that began them.
CREATE TRIGGER pipeline_run_forget AFTER DELETE ON pipeline_run
BEGIN
  DELETE FROM page WHERE root_id = OLD.run_id;
  DELETE FROM reading WHERE root_id = OLD.run_id;
END;

-- B's watermark, in its three fields.
CREATE VIEW watermark AS
SELECT name AS pipeline,
       CASE measure WHEN 'time' THEN strftime('%Y-%m-%dT%H:%M:%SZ', mark / 1000000, 'unixepoch') END
         AS lastUpdatedAt,
       last_run_id AS lastRunId, last_run_completed_at AS lastRunCompletedAt, mark, measure
  FROM pipeline;
