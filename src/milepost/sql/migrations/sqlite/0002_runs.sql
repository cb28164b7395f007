-- Runs: containers of jobs, with steps, their counters, and outputs that wait to be published.

CREATE TABLE run (
  id TEXT PRIMARY KEY,
  fence INTEGER NOT NULL DEFAULT 0,           -- a container holds no lease (H-43): always zero
  created_at INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000),
  due_at INTEGER,
  started_at INTEGER,
  finished_at INTEGER,
  deadline_at INTEGER,
  watermark_before INTEGER,
  watermark_after INTEGER,
  version INTEGER NOT NULL DEFAULT 1,
  kind_version INTEGER NOT NULL DEFAULT 1,
  current_step INTEGER NOT NULL DEFAULT 0,
  parent_id TEXT,                            -- the batch that this one is an item of (H-68)
  rerun_of TEXT,
  resumes TEXT,
  ordinal INTEGER,                           -- its place among the parent's items
  depth INTEGER,                             -- in a tree of batches: 0 at the root; else NULL
  priority INTEGER NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 9),
  state TEXT NOT NULL,
  move TEXT NOT NULL,
  actor TEXT,
  detail TEXT,
  tenant TEXT NOT NULL DEFAULT '',
  kind TEXT NOT NULL,
  queue TEXT NOT NULL DEFAULT 'default',
  phase TEXT,
  cause TEXT,
  ending TEXT,                               -- STOPPING: how it will end
  mode TEXT,
  codec TEXT NOT NULL DEFAULT 'json',
  unique_key TEXT,
  params_key TEXT,                           -- the same parameters have the same; for reuse
  trace TEXT,
  channel TEXT,
  policy TEXT,
  error TEXT,
  tags TEXT,
  payload BLOB,
  report BLOB
) STRICT;
CREATE UNIQUE INDEX run_unique ON run (tenant, kind, unique_key)
  WHERE unique_key IS NOT NULL AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED');
CREATE INDEX run_live ON run (id) WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED');
CREATE INDEX run_late ON run (deadline_at)
  WHERE state IN ('CREATED', 'QUEUED', 'RUNNING', 'FINALIZING') AND deadline_at IS NOT NULL;
CREATE INDEX run_held ON run (due_at) WHERE state = 'CREATED';
CREATE INDEX run_params ON run (tenant, kind, params_key)
  WHERE params_key IS NOT NULL AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED');
CREATE INDEX run_resumes ON run (resumes) WHERE resumes IS NOT NULL;
CREATE INDEX run_parent ON run (parent_id) WHERE parent_id IS NOT NULL;
-- One that was given up before it was filled leaves its place to another.
CREATE UNIQUE INDEX run_resumes_once ON run (resumes)
  WHERE resumes IS NOT NULL AND state NOT IN ('FAILED', 'CANCELLED');

-- What fan-in needs to know of a step is pinned here, so that maintenance needs no user code.
CREATE TABLE step (
  run_id TEXT NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  number INTEGER NOT NULL,
  name TEXT NOT NULL,
  role TEXT NOT NULL DEFAULT 'work',         -- work, partition, consolidate, reduce
  kind TEXT NOT NULL,
  kind_version INTEGER NOT NULL DEFAULT 1,
  queue TEXT NOT NULL DEFAULT 'default',
  gated INTEGER NOT NULL DEFAULT 0,
  opened INTEGER NOT NULL DEFAULT 1,      -- the gate: flipped once, never back
  poll_us INTEGER,
  policy TEXT,
  filled_at INTEGER,                         -- when a held run was last added to (H-107)
  channel TEXT,                              -- told of its jobs' ends, and when its gate opens
  PRIMARY KEY (run_id, number)
) STRICT;

-- Large steps spread over several slots so that settlers do not queue for one row.
CREATE TABLE step_count (
  run_id TEXT NOT NULL,
  step INTEGER NOT NULL,
  slot INTEGER NOT NULL DEFAULT 0,
  open INTEGER NOT NULL DEFAULT 0,
  succeeded INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  cancelled INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (run_id, step, slot),
  FOREIGN KEY (run_id, step) REFERENCES step (run_id, number) ON DELETE CASCADE
) STRICT;

-- Outputs of a running job: invisible until the transaction that ends it writes a publication.
CREATE TABLE staged (
  producer_id TEXT NOT NULL,
  fence INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  step INTEGER NOT NULL,
  codec TEXT NOT NULL DEFAULT 'json',
  payload BLOB,
  limit_key TEXT,                            -- which limit the job will be under
  PRIMARY KEY (producer_id, fence, seq)
) STRICT;

-- Results of a job of the last step that gave several: its reducer reads them one by one. They count
-- once their job SUCCEEDED, under the fence that it has then.
CREATE TABLE job_output (
  job_id TEXT NOT NULL,
  fence INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  payload BLOB NOT NULL,
  PRIMARY KEY (job_id, fence, seq)
) STRICT;

CREATE TABLE publication (
  producer_id TEXT PRIMARY KEY,
  fence INTEGER NOT NULL,
  run_id TEXT NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  total INTEGER NOT NULL,
  published INTEGER NOT NULL DEFAULT 0,       -- outputs below this seq are jobs by now
  withdrawn INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX publication_open ON publication (run_id) WHERE published < total AND NOT withdrawn;

-- What a running job says of itself. Not on `job`: any UPDATE there is a move.
CREATE TABLE progress (
  job_id TEXT PRIMARY KEY,
  fence INTEGER NOT NULL,
  fraction REAL,
  message TEXT,
  next_offset INTEGER NOT NULL DEFAULT 0,
  records INTEGER NOT NULL DEFAULT 0,
  position BLOB,
  created_at INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000),
  updated_at INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)
) STRICT;

DROP TRIGGER journal_refuse_insert;
-- A version has its entry from the moment it is there, or is taken back: there is none to bring by hand.
CREATE TRIGGER journal_refuse_insert BEFORE INSERT ON journal
  WHEN EXISTS (SELECT 1 FROM journal
                WHERE subject_id = NEW.subject_id AND machine = NEW.machine AND seq = NEW.seq)
    OR NOT CASE NEW.machine
             WHEN 'job' THEN EXISTS (SELECT 1 FROM job
                                      WHERE id = NEW.subject_id AND version = NEW.seq)
             WHEN 'run' THEN EXISTS (SELECT 1 FROM run
                                      WHERE id = NEW.subject_id AND version = NEW.seq)
             ELSE false END
BEGIN
  SELECT RAISE(ABORT, 'milepost: journal: it is written by moves alone');
END;

-- begin rendered: run
-- RAISE, never a constraint: UPDATE OR IGNORE steps over constraints. Comparisons are IS NOT: under
-- OR REPLACE a NULL becomes the column's default only after these triggers have looked.
CREATE TRIGGER run_refuse_insert BEFORE INSERT ON run
  WHEN ((NEW.id IS NULL OR length(CAST(NEW.id AS BLOB)) <> 36 OR NEW.id NOT GLOB '[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]')
      OR (EXISTS (SELECT 1 FROM run WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM run WHERE rowid = NEW.rowid))
      OR NEW.unique_key IS NOT NULL AND EXISTS (SELECT 1 FROM run WHERE tenant = coalesce(NEW.tenant, '') AND kind = NEW.kind AND unique_key = NEW.unique_key AND state IN ('CREATED', 'QUEUED', 'RUNNING', 'STOPPING', 'FINALIZING'))
      OR NEW.resumes IS NOT NULL AND EXISTS (SELECT 1 FROM run WHERE resumes = NEW.resumes AND state NOT IN ('FAILED', 'CANCELLED'))
      OR NEW.version IS NOT 1
      OR ((NEW.move = 'create' AND (NEW.state = 'CREATED' OR NEW.state = 'QUEUED'))) IS NOT TRUE
      OR NEW.fence IS NOT 0
      OR NEW.report IS NOT NULL)
BEGIN
  SELECT
    CASE
      WHEN (NEW.id IS NULL OR length(CAST(NEW.id AS BLOB)) <> 36 OR NEW.id NOT GLOB '[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]')
        THEN RAISE(ABORT, 'milepost: run: the id must be a UUID in lower case')
      WHEN (EXISTS (SELECT 1 FROM run WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM run WHERE rowid = NEW.rowid))
        THEN RAISE(ABORT, 'milepost: run: this id exists; look it up first, then move it')
      WHEN NEW.unique_key IS NOT NULL AND EXISTS (SELECT 1 FROM run WHERE tenant = coalesce(NEW.tenant, '') AND kind = NEW.kind AND unique_key = NEW.unique_key AND state IN ('CREATED', 'QUEUED', 'RUNNING', 'STOPPING', 'FINALIZING'))
        THEN RAISE(ABORT, 'milepost: run: a live one has this unique key; look it up first')
      WHEN NEW.resumes IS NOT NULL AND EXISTS (SELECT 1 FROM run WHERE resumes = NEW.resumes AND state NOT IN ('FAILED', 'CANCELLED'))
        THEN RAISE(ABORT, 'milepost: run: another run resumes that one already; look it up first')
      WHEN NEW.version IS NOT 1
        THEN RAISE(ABORT, 'milepost: run: a new row has version 1')
      WHEN ((NEW.move = 'create' AND (NEW.state = 'CREATED' OR NEW.state = 'QUEUED'))) IS NOT TRUE
        THEN RAISE(ABORT, 'milepost: run: the lifecycle declares no such creation')
      WHEN NEW.fence IS NOT 0
        THEN RAISE(ABORT, 'milepost: run: a new row has fence 0')
      WHEN NEW.report IS NOT NULL
        THEN RAISE(ABORT, 'milepost: run: a new row has no report')
    END;
END;

-- A negative rowid would hide in the guard above, where an absent one reads as -1.
CREATE TRIGGER run_refuse_rowid AFTER INSERT ON run WHEN NEW.rowid < 1
BEGIN
  SELECT RAISE(ABORT, 'milepost: run: rowids are positive');
END;

CREATE TRIGGER run_refuse_change BEFORE UPDATE ON run
  WHEN (NEW.rowid IS NOT OLD.rowid
      OR NEW.version IS NOT OLD.version + 1
      OR (CASE NEW.move
        WHEN 'seal' THEN OLD.state = 'CREATED' AND NEW.state = 'QUEUED'
        WHEN 'begin' THEN OLD.state = 'QUEUED' AND NEW.state = 'RUNNING'
        WHEN 'advance' THEN OLD.state = 'RUNNING' AND NEW.state = OLD.state
        WHEN 'finalize' THEN (OLD.state = 'QUEUED' OR OLD.state = 'RUNNING') AND NEW.state = 'FINALIZING'
        WHEN 'finish' THEN (OLD.state = 'QUEUED' OR OLD.state = 'RUNNING' OR OLD.state = 'FINALIZING') AND NEW.state = 'SUCCEEDED'
        WHEN 'stop' THEN (OLD.state = 'CREATED' OR OLD.state = 'QUEUED' OR OLD.state = 'RUNNING' OR OLD.state = 'FINALIZING') AND NEW.state = 'STOPPING'
        WHEN 'fail' THEN (OLD.state = 'CREATED' OR OLD.state = 'QUEUED' OR OLD.state = 'RUNNING' OR OLD.state = 'STOPPING' OR OLD.state = 'FINALIZING') AND NEW.state = 'FAILED'
        WHEN 'cancel' THEN (OLD.state = 'CREATED' OR OLD.state = 'QUEUED' OR OLD.state = 'RUNNING' OR OLD.state = 'STOPPING' OR OLD.state = 'FINALIZING') AND NEW.state = 'CANCELLED'
        ELSE false END) IS NOT TRUE
      OR NEW.fence IS NOT OLD.fence)
BEGIN
  SELECT
    CASE
      WHEN NEW.rowid IS NOT OLD.rowid
        THEN RAISE(ABORT, 'milepost: run: the rowid is fixed')
      WHEN NEW.version IS NOT OLD.version + 1
        THEN RAISE(ABORT, 'milepost: run: every change is a move: SET move = ..., version = version + 1')
      WHEN (CASE NEW.move
        WHEN 'seal' THEN OLD.state = 'CREATED' AND NEW.state = 'QUEUED'
        WHEN 'begin' THEN OLD.state = 'QUEUED' AND NEW.state = 'RUNNING'
        WHEN 'advance' THEN OLD.state = 'RUNNING' AND NEW.state = OLD.state
        WHEN 'finalize' THEN (OLD.state = 'QUEUED' OR OLD.state = 'RUNNING') AND NEW.state = 'FINALIZING'
        WHEN 'finish' THEN (OLD.state = 'QUEUED' OR OLD.state = 'RUNNING' OR OLD.state = 'FINALIZING') AND NEW.state = 'SUCCEEDED'
        WHEN 'stop' THEN (OLD.state = 'CREATED' OR OLD.state = 'QUEUED' OR OLD.state = 'RUNNING' OR OLD.state = 'FINALIZING') AND NEW.state = 'STOPPING'
        WHEN 'fail' THEN (OLD.state = 'CREATED' OR OLD.state = 'QUEUED' OR OLD.state = 'RUNNING' OR OLD.state = 'STOPPING' OR OLD.state = 'FINALIZING') AND NEW.state = 'FAILED'
        WHEN 'cancel' THEN (OLD.state = 'CREATED' OR OLD.state = 'QUEUED' OR OLD.state = 'RUNNING' OR OLD.state = 'STOPPING' OR OLD.state = 'FINALIZING') AND NEW.state = 'CANCELLED'
        ELSE false END) IS NOT TRUE
        THEN RAISE(ABORT, 'milepost: run: this move is not declared from this state to that one')
      WHEN NEW.fence IS NOT OLD.fence
        THEN RAISE(ABORT, 'milepost: run: only jobs are leased')
    END;
END;

CREATE TRIGGER run_refuse_fixed
  BEFORE UPDATE OF id, tenant, kind, kind_version, created_at, codec, policy, deadline_at, unique_key, params_key, parent_id, rerun_of, resumes, ordinal, depth, payload ON run
  WHEN (NEW.rowid IS NOT OLD.rowid
      OR (NEW.id IS NOT OLD.id
      OR NEW.tenant IS NOT OLD.tenant
      OR NEW.kind IS NOT OLD.kind
      OR NEW.kind_version IS NOT OLD.kind_version
      OR NEW.created_at IS NOT OLD.created_at
      OR NEW.codec IS NOT OLD.codec
      OR NEW.policy IS NOT OLD.policy
      OR NEW.deadline_at IS NOT OLD.deadline_at
      OR NEW.unique_key IS NOT OLD.unique_key
      OR NEW.params_key IS NOT OLD.params_key
      OR NEW.parent_id IS NOT OLD.parent_id
      OR NEW.rerun_of IS NOT OLD.rerun_of
      OR NEW.resumes IS NOT OLD.resumes
      OR NEW.ordinal IS NOT OLD.ordinal
      OR NEW.depth IS NOT OLD.depth)
      OR (NEW.move IS NOT 'erase' AND (NEW.payload IS NOT OLD.payload)))
BEGIN
  SELECT
    CASE
      WHEN NEW.rowid IS NOT OLD.rowid
        THEN RAISE(ABORT, 'milepost: run: the rowid is fixed')
      WHEN (NEW.id IS NOT OLD.id
      OR NEW.tenant IS NOT OLD.tenant
      OR NEW.kind IS NOT OLD.kind
      OR NEW.kind_version IS NOT OLD.kind_version
      OR NEW.created_at IS NOT OLD.created_at
      OR NEW.codec IS NOT OLD.codec
      OR NEW.policy IS NOT OLD.policy
      OR NEW.deadline_at IS NOT OLD.deadline_at
      OR NEW.unique_key IS NOT OLD.unique_key
      OR NEW.params_key IS NOT OLD.params_key
      OR NEW.parent_id IS NOT OLD.parent_id
      OR NEW.rerun_of IS NOT OLD.rerun_of
      OR NEW.resumes IS NOT OLD.resumes
      OR NEW.ordinal IS NOT OLD.ordinal
      OR NEW.depth IS NOT OLD.depth)
        THEN RAISE(ABORT, 'milepost: run: these never change: id, tenant, kind, kind_version, created_at, codec, policy, deadline_at, unique_key, params_key, parent_id, rerun_of, resumes, ordinal, depth')
      WHEN (NEW.move IS NOT 'erase' AND (NEW.payload IS NOT OLD.payload))
        THEN RAISE(ABORT, 'milepost: run: the payload is fixed')
    END;
END;

CREATE TRIGGER run_refuse_delete BEFORE DELETE ON run
  WHEN NOT (OLD.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED'))
BEGIN
  SELECT RAISE(ABORT, 'milepost: run: only a final run may be deleted');
END;

CREATE TRIGGER run_refuse_unrecorded_insert AFTER INSERT ON run WHEN NOT EXISTS (SELECT 1 FROM journal WHERE subject_id = NEW.id AND machine = 'run' AND seq = NEW.version)
BEGIN
  SELECT RAISE(ABORT, 'milepost: run: this move has no journal entry; one made by a trigger on the journal needs PRAGMA recursive_triggers = ON');
END;

CREATE TRIGGER run_refuse_unrecorded_move AFTER UPDATE OF version ON run WHEN NOT EXISTS (SELECT 1 FROM journal WHERE subject_id = NEW.id AND machine = 'run' AND seq = NEW.version)
BEGIN
  SELECT RAISE(ABORT, 'milepost: run: this move has no journal entry; one made by a trigger on the journal needs PRAGMA recursive_triggers = ON');
END;

CREATE TRIGGER run_journal_insert AFTER INSERT ON run
BEGIN
  INSERT INTO journal (machine, subject_id, seq, move, from_state, to_state, at, actor, fence, detail)
  VALUES ('run', NEW.id, NEW.version, NEW.move, NULL, NEW.state,
          CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + coalesce((SELECT offset_us FROM clock), 0), NEW.actor, NEW.fence, NEW.detail);
  INSERT INTO feed (subject_id, machine, seq, at)
  SELECT NEW.id, 'run', NEW.version, CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + coalesce((SELECT offset_us FROM clock), 0) FROM feed_switch WHERE until > 0;
END;

CREATE TRIGGER run_journal_move AFTER UPDATE ON run WHEN NEW.version <> OLD.version
BEGIN
  INSERT INTO journal (machine, subject_id, seq, move, from_state, to_state, at, actor, fence, detail)
  VALUES ('run', NEW.id, NEW.version, NEW.move, OLD.state, NEW.state,
          CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + coalesce((SELECT offset_us FROM clock), 0), NEW.actor, NEW.fence, NEW.detail);
  INSERT INTO feed (subject_id, machine, seq, at)
  SELECT NEW.id, 'run', NEW.version, CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + coalesce((SELECT offset_us FROM clock), 0) FROM feed_switch WHERE until > 0;
END;
-- end rendered: run
