-- Jobs, their journal and the clock.
--
-- Every UPDATE of `job` is a move: triggers rendered from the declared machine refuse what it does
-- not declare and write the journal in the same statement. Nothing else writes the journal.
-- Ids are lower-case UUID text, instants are microseconds since 1970 UTC, JSON is text.

CREATE TABLE clock (
  id INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
  offset_us INTEGER NOT NULL DEFAULT 0       -- moved by tests; zero in production
) STRICT;
INSERT INTO clock DEFAULT VALUES;

CREATE TABLE job (
  id TEXT NOT NULL,
  fence INTEGER NOT NULL DEFAULT 0,           -- grows by one with every claim
  queued_seq INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000),
  due_at INTEGER,                        -- WAITING and RETRYING: when it goes on
  started_at INTEGER,                    -- its first claim
  finished_at INTEGER,
  deadline_at INTEGER,                   -- must be final by then
  start_by INTEGER,                      -- must have started by then
  timeout_us INTEGER,                         -- one attempt's time
  version INTEGER NOT NULL DEFAULT 1,        -- the seq of its last journal entry
  kind_version INTEGER NOT NULL DEFAULT 1,
  errors INTEGER NOT NULL DEFAULT 0,
  losses INTEGER NOT NULL DEFAULT 0,
  polls INTEGER NOT NULL DEFAULT 0,
  releases INTEGER NOT NULL DEFAULT 0,
  retries INTEGER NOT NULL DEFAULT 3 CHECK (retries >= 0),
  recoveries INTEGER CHECK (recoveries >= 0),  -- NULL: losses count among the retries
  poll_limit INTEGER NOT NULL DEFAULT 1000,
  poison_limit INTEGER NOT NULL DEFAULT 3,
  step INTEGER,
  ordinal INTEGER,
  run_id TEXT,
  parent_id TEXT,
  rerun_of TEXT,
  origin_id TEXT,                           -- the job whose idempotency key and steps it goes on with
  priority INTEGER NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 9),
  units REAL CHECK (units > 0),              -- taken from its limit's rate by a claim; NULL: one
  state TEXT NOT NULL,
  move TEXT NOT NULL,
  actor TEXT,
  detail TEXT,
  worker_id TEXT,
  tenant TEXT NOT NULL DEFAULT '',
  kind TEXT NOT NULL,
  queue TEXT NOT NULL DEFAULT 'default',
  phase TEXT,
  cause TEXT,
  cancel_reason TEXT,                        -- set by a note: its worker was asked to stop
  unfit TEXT,                                -- the signatures that its arguments do not fit
  codec TEXT NOT NULL DEFAULT 'json',
  unique_key TEXT,
  limit_key TEXT,                            -- which limit it is under: stripe/rule/key
  trace TEXT,
  channel TEXT,
  policy TEXT,
  error TEXT,
  error_type TEXT,                           -- of its last error, for those who look for it
  error_code TEXT,
  fingerprint TEXT,
  tags TEXT,
  payload BLOB,
  result BLOB,
  CONSTRAINT job_pkey PRIMARY KEY (id)
) STRICT;

-- Jobs without a limit stand together, in the order of their arrival; those with one key by key.
CREATE INDEX job_claim ON job (queue, priority DESC, limit_key, queued_seq) WHERE state = 'QUEUED';
-- Those with a limit in the order of their arrival.
CREATE INDEX job_front ON job (queue, priority DESC, queued_seq)
  WHERE state = 'QUEUED' AND coalesce(limit_key, '') <> '';
-- Those that hold the turn of an ordered key between two attempts.
CREATE INDEX job_turn ON job (limit_key)
  WHERE limit_key IS NOT NULL AND fence > 0 AND state IN ('WAITING', 'RETRYING');
CREATE INDEX job_due ON job (due_at) WHERE state IN ('WAITING', 'RETRYING');
CREATE INDEX job_held ON job (worker_id) WHERE state = 'RUNNING';
CREATE INDEX job_unfit ON job (kind, kind_version) WHERE state = 'WAITING' AND unfit IS NOT NULL;
CREATE INDEX job_unsubmitted ON job (created_at) WHERE state = 'CREATED' AND run_id IS NULL;
CREATE INDEX job_deadline ON job
  (min(coalesce(deadline_at, start_by), coalesce(start_by, deadline_at)))
  WHERE (deadline_at IS NOT NULL OR start_by IS NOT NULL)
    AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED');
CREATE UNIQUE INDEX job_unique ON job (tenant, kind, unique_key)
  WHERE unique_key IS NOT NULL AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED');
CREATE INDEX job_run ON job (run_id, step, state) WHERE run_id IS NOT NULL;
-- A job is run again once, and in a run that resumes its own once: chains do not branch.
CREATE UNIQUE INDEX job_rerun ON job (rerun_of, coalesce(run_id, ''))
  WHERE rerun_of IS NOT NULL;

-- One entry per move of a job or a run.
CREATE TABLE journal (
  subject_id TEXT NOT NULL,
  machine TEXT NOT NULL,
  seq INTEGER NOT NULL,
  at INTEGER NOT NULL,
  fence INTEGER NOT NULL,
  move TEXT NOT NULL,
  from_state TEXT,
  to_state TEXT NOT NULL,
  actor TEXT,
  detail TEXT,
  PRIMARY KEY (subject_id, machine, seq)
) STRICT, WITHOUT ROWID;

-- Only an entry that mirrors the live row's version, and is not there yet, may come in: the one
-- that the row's own trigger writes. `run` joins in the next migration.
-- A version has its entry from the moment it is there, or is taken back: there is none to bring by hand.
CREATE TRIGGER journal_refuse_insert BEFORE INSERT ON journal
  WHEN EXISTS (SELECT 1 FROM journal
                WHERE subject_id = NEW.subject_id AND machine = NEW.machine AND seq = NEW.seq)
    OR NEW.machine IS NOT 'job'
    OR NOT EXISTS (SELECT 1 FROM job
                    WHERE id = NEW.subject_id AND version = NEW.seq)
BEGIN
  SELECT RAISE(ABORT, 'milepost: journal: it is written by moves alone');
END;
CREATE TRIGGER journal_refuse_update BEFORE UPDATE ON journal
BEGIN
  SELECT RAISE(ABORT, 'milepost: journal: its entries never change');
END;
CREATE TRIGGER journal_refuse_delete BEFORE DELETE ON journal
BEGIN
  SELECT RAISE(ABORT, 'milepost: journal: its entries leave by retention alone');
END;

-- The journal's entries in the order of their commits, which here is that of their writing: there is
-- one writer. It is kept only while somebody follows it, and for a while after.
CREATE TABLE feed (
  place INTEGER PRIMARY KEY,
  subject_id TEXT NOT NULL,
  machine TEXT NOT NULL,
  seq INTEGER NOT NULL,
  at INTEGER NOT NULL
) STRICT;
CREATE TABLE feed_switch (
  id INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
  until INTEGER NOT NULL DEFAULT 0,          -- 0: off
  since INTEGER NOT NULL DEFAULT 0           -- the place after which nothing was left out
) STRICT;
INSERT INTO feed_switch DEFAULT VALUES;

-- begin rendered: job
-- RAISE, never a constraint: UPDATE OR IGNORE steps over constraints. Comparisons are IS NOT: under
-- OR REPLACE a NULL becomes the column's default only after these triggers have looked.
CREATE TRIGGER job_refuse_insert BEFORE INSERT ON job
  WHEN ((NEW.id IS NULL OR length(CAST(NEW.id AS BLOB)) <> 36 OR NEW.id NOT GLOB '[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]')
      OR (EXISTS (SELECT 1 FROM job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM job WHERE rowid = NEW.rowid))
      OR NEW.unique_key IS NOT NULL AND EXISTS (SELECT 1 FROM job WHERE tenant = coalesce(NEW.tenant, '') AND kind = NEW.kind AND unique_key = NEW.unique_key AND state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED', 'RUNNING', 'RETRYING'))
      OR NEW.rerun_of IS NOT NULL AND EXISTS (SELECT 1 FROM job WHERE rerun_of = NEW.rerun_of AND coalesce(run_id, '') = coalesce(NEW.run_id, ''))
      OR NEW.version IS NOT 1
      OR ((NEW.move = 'create' AND (NEW.state = 'CREATED' OR NEW.state = 'GATED' OR NEW.state = 'WAITING' OR NEW.state = 'READY' OR NEW.state = 'QUEUED'))) IS NOT TRUE
      OR NEW.fence IS NOT 0
      OR NEW.worker_id IS NOT NULL
      OR NEW.ordinal < 0
      OR (NEW.errors IS NOT 0
      OR NEW.losses IS NOT 0
      OR NEW.polls IS NOT 0
      OR NEW.releases IS NOT 0))
BEGIN
  SELECT
    CASE
      WHEN (NEW.id IS NULL OR length(CAST(NEW.id AS BLOB)) <> 36 OR NEW.id NOT GLOB '[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]')
        THEN RAISE(ABORT, 'milepost: job: the id must be a UUID in lower case')
      WHEN (EXISTS (SELECT 1 FROM job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM job WHERE rowid = NEW.rowid))
        THEN RAISE(ABORT, 'milepost: job: this id exists; look it up first, then move it')
      WHEN NEW.unique_key IS NOT NULL AND EXISTS (SELECT 1 FROM job WHERE tenant = coalesce(NEW.tenant, '') AND kind = NEW.kind AND unique_key = NEW.unique_key AND state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED', 'RUNNING', 'RETRYING'))
        THEN RAISE(ABORT, 'milepost: job: a live one has this unique key; look it up first')
      WHEN NEW.rerun_of IS NOT NULL AND EXISTS (SELECT 1 FROM job WHERE rerun_of = NEW.rerun_of AND coalesce(run_id, '') = coalesce(NEW.run_id, ''))
        THEN RAISE(ABORT, 'milepost: job: it was run again already; run the newest of its chain again')
      WHEN NEW.version IS NOT 1
        THEN RAISE(ABORT, 'milepost: job: a new row has version 1')
      WHEN ((NEW.move = 'create' AND (NEW.state = 'CREATED' OR NEW.state = 'GATED' OR NEW.state = 'WAITING' OR NEW.state = 'READY' OR NEW.state = 'QUEUED'))) IS NOT TRUE
        THEN RAISE(ABORT, 'milepost: job: the lifecycle declares no such creation')
      WHEN NEW.fence IS NOT 0
        THEN RAISE(ABORT, 'milepost: job: a new row has fence 0')
      WHEN NEW.worker_id IS NOT NULL
        THEN RAISE(ABORT, 'milepost: job: a new row has no worker')
      WHEN NEW.ordinal < 0
        THEN RAISE(ABORT, 'milepost: job: ordinals count from 0')
      WHEN (NEW.errors IS NOT 0
      OR NEW.losses IS NOT 0
      OR NEW.polls IS NOT 0
      OR NEW.releases IS NOT 0)
        THEN RAISE(ABORT, 'milepost: job: a new row has counted nothing')
    END;
END;

-- A negative rowid would hide in the guard above, where an absent one reads as -1.
CREATE TRIGGER job_refuse_rowid AFTER INSERT ON job WHEN NEW.rowid < 1
BEGIN
  SELECT RAISE(ABORT, 'milepost: job: rowids are positive');
END;

CREATE TRIGGER job_refuse_change BEFORE UPDATE ON job
  WHEN (NEW.rowid IS NOT OLD.rowid
      OR NEW.version IS NOT OLD.version + 1
      OR (CASE NEW.move
        WHEN 'claim' THEN OLD.state = 'QUEUED' AND NEW.state = 'RUNNING'
        WHEN 'succeed' THEN OLD.state = 'RUNNING' AND NEW.state = 'SUCCEEDED'
        WHEN 'submit' THEN OLD.state = 'CREATED' AND (NEW.state = 'GATED' OR NEW.state = 'WAITING' OR NEW.state = 'READY' OR NEW.state = 'QUEUED')
        WHEN 'open' THEN OLD.state = 'GATED' AND (NEW.state = 'WAITING' OR NEW.state = 'READY' OR NEW.state = 'QUEUED')
        WHEN 'wake' THEN OLD.state = 'WAITING' AND (NEW.state = 'READY' OR NEW.state = 'QUEUED')
        WHEN 'due' THEN OLD.state = 'RETRYING' AND (NEW.state = 'READY' OR NEW.state = 'QUEUED')
        WHEN 'dispatch' THEN OLD.state = 'READY' AND NEW.state = 'QUEUED'
        WHEN 'undispatch' THEN OLD.state = 'QUEUED' AND NEW.state = 'READY'
        WHEN 'note' THEN OLD.state = 'RUNNING' AND NEW.state = OLD.state
        WHEN 'fail' THEN OLD.state = 'RUNNING' AND NEW.state = 'FAILED'
        WHEN 'retry' THEN OLD.state = 'RUNNING' AND NEW.state = 'RETRYING'
        WHEN 'later' THEN OLD.state = 'RUNNING' AND NEW.state = 'WAITING'
        WHEN 'release' THEN OLD.state = 'RUNNING' AND (NEW.state = 'RETRYING' OR NEW.state = 'WAITING')
        WHEN 'lose' THEN OLD.state = 'RUNNING' AND (NEW.state = 'RETRYING' OR NEW.state = 'FAILED')
        WHEN 'expire' THEN (OLD.state = 'CREATED' OR OLD.state = 'GATED' OR OLD.state = 'WAITING' OR OLD.state = 'READY' OR OLD.state = 'QUEUED' OR OLD.state = 'RUNNING' OR OLD.state = 'RETRYING') AND NEW.state = 'FAILED'
        WHEN 'reject' THEN (OLD.state = 'WAITING' OR OLD.state = 'READY' OR OLD.state = 'QUEUED' OR OLD.state = 'RETRYING') AND NEW.state = 'FAILED'
        WHEN 'erase' THEN (OLD.state = 'SUCCEEDED' OR OLD.state = 'FAILED' OR OLD.state = 'CANCELLED') AND NEW.state = OLD.state
        WHEN 'cancel' THEN (OLD.state = 'CREATED' OR OLD.state = 'GATED' OR OLD.state = 'WAITING' OR OLD.state = 'READY' OR OLD.state = 'QUEUED' OR OLD.state = 'RUNNING' OR OLD.state = 'RETRYING') AND NEW.state = 'CANCELLED'
        ELSE false END) IS NOT TRUE
      OR CASE WHEN NEW.state = 'RUNNING' THEN coalesce(NEW.worker_id, '') = '' ELSE NEW.worker_id IS NOT NULL END
      OR NEW.worker_id <> OLD.worker_id
      OR NEW.fence IS NOT OLD.fence + CASE WHEN NEW.move = 'claim' THEN 1 ELSE 0 END
      OR (((NEW.errors IS NOT OLD.errors) AND NEW.errors IS NOT OLD.errors + CASE WHEN NEW.move IN ('retry', 'fail') THEN 1 ELSE 0 END)
      OR ((NEW.losses IS NOT OLD.losses) AND NEW.losses IS NOT OLD.losses + CASE WHEN NEW.move = 'lose' THEN 1 ELSE 0 END)
      OR ((NEW.polls IS NOT OLD.polls) AND NEW.polls IS NOT OLD.polls + CASE WHEN NEW.move = 'later' THEN 1 ELSE 0 END)
      OR ((NEW.releases IS NOT OLD.releases) AND NEW.releases IS NOT OLD.releases + CASE WHEN NEW.move = 'release' THEN 1 ELSE 0 END))
      OR (NEW.move = 'erase' AND NOT EXISTS (SELECT 1 FROM job AS was
      WHERE was.rowid = OLD.rowid
        AND NEW.priority IS was.priority
        AND NEW.state IS was.state
        AND NEW.fence IS was.fence
        AND NEW.due_at IS was.due_at
        AND NEW.started_at IS was.started_at
        AND NEW.finished_at IS was.finished_at
        AND NEW.phase IS was.phase
        AND NEW.cause IS was.cause
        AND NEW.trace IS was.trace
        AND NEW.channel IS was.channel
        AND NEW.worker_id IS was.worker_id
        AND NEW.queued_seq IS was.queued_seq
        AND NEW.errors IS was.errors
        AND NEW.losses IS was.losses
        AND NEW.polls IS was.polls
        AND NEW.releases IS was.releases
        AND NEW.cancel_reason IS was.cancel_reason
        AND NEW.unfit IS was.unfit
        AND NEW.error_type IS was.error_type
        AND NEW.error_code IS was.error_code
        AND NEW.fingerprint IS was.fingerprint
        AND (NEW.payload IS NULL OR NEW.payload IS was.payload)
        AND (NEW.result IS NULL OR NEW.result IS was.result)
        AND (NEW.error IS NULL OR NEW.error IS was.error))))
BEGIN
  SELECT
    CASE
      WHEN NEW.rowid IS NOT OLD.rowid
        THEN RAISE(ABORT, 'milepost: job: the rowid is fixed')
      WHEN NEW.version IS NOT OLD.version + 1
        THEN RAISE(ABORT, 'milepost: job: every change is a move: SET move = ..., version = version + 1')
      WHEN (CASE NEW.move
        WHEN 'claim' THEN OLD.state = 'QUEUED' AND NEW.state = 'RUNNING'
        WHEN 'succeed' THEN OLD.state = 'RUNNING' AND NEW.state = 'SUCCEEDED'
        WHEN 'submit' THEN OLD.state = 'CREATED' AND (NEW.state = 'GATED' OR NEW.state = 'WAITING' OR NEW.state = 'READY' OR NEW.state = 'QUEUED')
        WHEN 'open' THEN OLD.state = 'GATED' AND (NEW.state = 'WAITING' OR NEW.state = 'READY' OR NEW.state = 'QUEUED')
        WHEN 'wake' THEN OLD.state = 'WAITING' AND (NEW.state = 'READY' OR NEW.state = 'QUEUED')
        WHEN 'due' THEN OLD.state = 'RETRYING' AND (NEW.state = 'READY' OR NEW.state = 'QUEUED')
        WHEN 'dispatch' THEN OLD.state = 'READY' AND NEW.state = 'QUEUED'
        WHEN 'undispatch' THEN OLD.state = 'QUEUED' AND NEW.state = 'READY'
        WHEN 'note' THEN OLD.state = 'RUNNING' AND NEW.state = OLD.state
        WHEN 'fail' THEN OLD.state = 'RUNNING' AND NEW.state = 'FAILED'
        WHEN 'retry' THEN OLD.state = 'RUNNING' AND NEW.state = 'RETRYING'
        WHEN 'later' THEN OLD.state = 'RUNNING' AND NEW.state = 'WAITING'
        WHEN 'release' THEN OLD.state = 'RUNNING' AND (NEW.state = 'RETRYING' OR NEW.state = 'WAITING')
        WHEN 'lose' THEN OLD.state = 'RUNNING' AND (NEW.state = 'RETRYING' OR NEW.state = 'FAILED')
        WHEN 'expire' THEN (OLD.state = 'CREATED' OR OLD.state = 'GATED' OR OLD.state = 'WAITING' OR OLD.state = 'READY' OR OLD.state = 'QUEUED' OR OLD.state = 'RUNNING' OR OLD.state = 'RETRYING') AND NEW.state = 'FAILED'
        WHEN 'reject' THEN (OLD.state = 'WAITING' OR OLD.state = 'READY' OR OLD.state = 'QUEUED' OR OLD.state = 'RETRYING') AND NEW.state = 'FAILED'
        WHEN 'erase' THEN (OLD.state = 'SUCCEEDED' OR OLD.state = 'FAILED' OR OLD.state = 'CANCELLED') AND NEW.state = OLD.state
        WHEN 'cancel' THEN (OLD.state = 'CREATED' OR OLD.state = 'GATED' OR OLD.state = 'WAITING' OR OLD.state = 'READY' OR OLD.state = 'QUEUED' OR OLD.state = 'RUNNING' OR OLD.state = 'RETRYING') AND NEW.state = 'CANCELLED'
        ELSE false END) IS NOT TRUE
        THEN RAISE(ABORT, 'milepost: job: this move is not declared from this state to that one')
      WHEN CASE WHEN NEW.state = 'RUNNING' THEN coalesce(NEW.worker_id, '') = '' ELSE NEW.worker_id IS NOT NULL END
        THEN RAISE(ABORT, 'milepost: job: RUNNING needs a worker_id and no other state may have one')
      WHEN NEW.worker_id <> OLD.worker_id
        THEN RAISE(ABORT, 'milepost: job: a running job keeps its worker')
      WHEN NEW.fence IS NOT OLD.fence + CASE WHEN NEW.move = 'claim' THEN 1 ELSE 0 END
        THEN RAISE(ABORT, 'milepost: job: the fence grows by one with every claim and by nothing else')
      WHEN (((NEW.errors IS NOT OLD.errors) AND NEW.errors IS NOT OLD.errors + CASE WHEN NEW.move IN ('retry', 'fail') THEN 1 ELSE 0 END)
      OR ((NEW.losses IS NOT OLD.losses) AND NEW.losses IS NOT OLD.losses + CASE WHEN NEW.move = 'lose' THEN 1 ELSE 0 END)
      OR ((NEW.polls IS NOT OLD.polls) AND NEW.polls IS NOT OLD.polls + CASE WHEN NEW.move = 'later' THEN 1 ELSE 0 END)
      OR ((NEW.releases IS NOT OLD.releases) AND NEW.releases IS NOT OLD.releases + CASE WHEN NEW.move = 'release' THEN 1 ELSE 0 END))
        THEN RAISE(ABORT, 'milepost: job: errors, losses, polls, releases are counted by the moves alone')
      WHEN (NEW.move = 'erase' AND NOT EXISTS (SELECT 1 FROM job AS was
      WHERE was.rowid = OLD.rowid
        AND NEW.priority IS was.priority
        AND NEW.state IS was.state
        AND NEW.fence IS was.fence
        AND NEW.due_at IS was.due_at
        AND NEW.started_at IS was.started_at
        AND NEW.finished_at IS was.finished_at
        AND NEW.phase IS was.phase
        AND NEW.cause IS was.cause
        AND NEW.trace IS was.trace
        AND NEW.channel IS was.channel
        AND NEW.worker_id IS was.worker_id
        AND NEW.queued_seq IS was.queued_seq
        AND NEW.errors IS was.errors
        AND NEW.losses IS was.losses
        AND NEW.polls IS was.polls
        AND NEW.releases IS was.releases
        AND NEW.cancel_reason IS was.cancel_reason
        AND NEW.unfit IS was.unfit
        AND NEW.error_type IS was.error_type
        AND NEW.error_code IS was.error_code
        AND NEW.fingerprint IS was.fingerprint
        AND (NEW.payload IS NULL OR NEW.payload IS was.payload)
        AND (NEW.result IS NULL OR NEW.result IS was.result)
        AND (NEW.error IS NULL OR NEW.error IS was.error)))
        THEN RAISE(ABORT, 'milepost: job: erase sets payload, result, error to NULL and touches nothing else')
    END
  WHERE NOT (NEW.rowid IS OLD.rowid
     AND NOT NOT EXISTS (SELECT 1 FROM job AS was
      WHERE was.rowid = OLD.rowid
        AND NEW.priority IS was.priority
        AND NEW.state IS was.state
        AND NEW.version IS was.version
        AND NEW.move IS was.move
        AND NEW.actor IS was.actor
        AND NEW.detail IS was.detail
        AND NEW.fence IS was.fence
        AND NEW.due_at IS was.due_at
        AND NEW.started_at IS was.started_at
        AND NEW.finished_at IS was.finished_at
        AND NEW.phase IS was.phase
        AND NEW.cause IS was.cause
        AND NEW.payload IS was.payload
        AND NEW.error IS was.error
        AND NEW.trace IS was.trace
        AND NEW.channel IS was.channel
        AND NEW.worker_id IS was.worker_id
        AND NEW.queued_seq IS was.queued_seq
        AND NEW.cancel_reason IS was.cancel_reason
        AND NEW.unfit IS was.unfit
        AND NEW.error_type IS was.error_type
        AND NEW.error_code IS was.error_code
        AND NEW.fingerprint IS was.fingerprint
        AND NEW.result IS was.result)
     AND (NEW.errors IS NOT OLD.errors
      OR NEW.losses IS NOT OLD.losses
      OR NEW.polls IS NOT OLD.polls
      OR NEW.releases IS NOT OLD.releases)
     AND NEW.errors IS (SELECT coalesce(sum(CASE WHEN move IN ('retry', 'fail') THEN 1 WHEN move = 'snapshot' THEN json_extract(detail, '$.errors') ELSE 0 END), 0) FROM journal WHERE machine = 'job' AND subject_id = NEW.id)
     AND NEW.losses IS (SELECT coalesce(sum(CASE WHEN move = 'lose' THEN 1 WHEN move = 'snapshot' THEN json_extract(detail, '$.losses') ELSE 0 END), 0) FROM journal WHERE machine = 'job' AND subject_id = NEW.id)
     AND NEW.polls IS (SELECT coalesce(sum(CASE WHEN move = 'later' THEN 1 WHEN move = 'snapshot' THEN json_extract(detail, '$.polls') ELSE 0 END), 0) FROM journal WHERE machine = 'job' AND subject_id = NEW.id)
     AND NEW.releases IS (SELECT coalesce(sum(CASE WHEN move = 'release' THEN 1 WHEN move = 'snapshot' THEN json_extract(detail, '$.releases') ELSE 0 END), 0) FROM journal WHERE machine = 'job' AND subject_id = NEW.id));
END;

CREATE TRIGGER job_refuse_fixed
  BEFORE UPDATE OF id, tenant, kind, kind_version, queue, created_at, codec, retries, recoveries, poll_limit, poison_limit, timeout_us, deadline_at, start_by, policy, unique_key, limit_key, units, tags, parent_id, rerun_of, origin_id, run_id, step, ordinal, payload ON job
  WHEN (NEW.rowid IS NOT OLD.rowid
      OR (NEW.id IS NOT OLD.id
      OR NEW.tenant IS NOT OLD.tenant
      OR NEW.kind IS NOT OLD.kind
      OR NEW.kind_version IS NOT OLD.kind_version
      OR NEW.queue IS NOT OLD.queue
      OR NEW.created_at IS NOT OLD.created_at
      OR NEW.codec IS NOT OLD.codec
      OR NEW.retries IS NOT OLD.retries
      OR NEW.recoveries IS NOT OLD.recoveries
      OR NEW.poll_limit IS NOT OLD.poll_limit
      OR NEW.poison_limit IS NOT OLD.poison_limit
      OR NEW.timeout_us IS NOT OLD.timeout_us
      OR NEW.deadline_at IS NOT OLD.deadline_at
      OR NEW.start_by IS NOT OLD.start_by
      OR NEW.policy IS NOT OLD.policy
      OR NEW.unique_key IS NOT OLD.unique_key
      OR NEW.limit_key IS NOT OLD.limit_key
      OR NEW.units IS NOT OLD.units
      OR NEW.tags IS NOT OLD.tags
      OR NEW.parent_id IS NOT OLD.parent_id
      OR NEW.rerun_of IS NOT OLD.rerun_of
      OR NEW.origin_id IS NOT OLD.origin_id
      OR NEW.run_id IS NOT OLD.run_id
      OR NEW.step IS NOT OLD.step
      OR NEW.ordinal IS NOT OLD.ordinal)
      OR (NEW.move IS NOT 'erase' AND (NEW.payload IS NOT OLD.payload)))
BEGIN
  SELECT
    CASE
      WHEN NEW.rowid IS NOT OLD.rowid
        THEN RAISE(ABORT, 'milepost: job: the rowid is fixed')
      WHEN (NEW.id IS NOT OLD.id
      OR NEW.tenant IS NOT OLD.tenant
      OR NEW.kind IS NOT OLD.kind
      OR NEW.kind_version IS NOT OLD.kind_version
      OR NEW.queue IS NOT OLD.queue
      OR NEW.created_at IS NOT OLD.created_at
      OR NEW.codec IS NOT OLD.codec
      OR NEW.retries IS NOT OLD.retries
      OR NEW.recoveries IS NOT OLD.recoveries
      OR NEW.poll_limit IS NOT OLD.poll_limit
      OR NEW.poison_limit IS NOT OLD.poison_limit
      OR NEW.timeout_us IS NOT OLD.timeout_us
      OR NEW.deadline_at IS NOT OLD.deadline_at
      OR NEW.start_by IS NOT OLD.start_by
      OR NEW.policy IS NOT OLD.policy
      OR NEW.unique_key IS NOT OLD.unique_key
      OR NEW.limit_key IS NOT OLD.limit_key
      OR NEW.units IS NOT OLD.units
      OR NEW.tags IS NOT OLD.tags
      OR NEW.parent_id IS NOT OLD.parent_id
      OR NEW.rerun_of IS NOT OLD.rerun_of
      OR NEW.origin_id IS NOT OLD.origin_id
      OR NEW.run_id IS NOT OLD.run_id
      OR NEW.step IS NOT OLD.step
      OR NEW.ordinal IS NOT OLD.ordinal)
        THEN RAISE(ABORT, 'milepost: job: these never change: id, tenant, kind, kind_version, queue, created_at, codec, retries, recoveries, poll_limit, poison_limit, timeout_us, deadline_at, start_by, policy, unique_key, limit_key, units, tags, parent_id, rerun_of, origin_id, run_id, step, ordinal')
      WHEN (NEW.move IS NOT 'erase' AND (NEW.payload IS NOT OLD.payload))
        THEN RAISE(ABORT, 'milepost: job: the payload is fixed')
    END;
END;

CREATE TRIGGER job_refuse_delete BEFORE DELETE ON job
  WHEN NOT (OLD.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED'))
BEGIN
  SELECT RAISE(ABORT, 'milepost: job: only a final job may be deleted');
END;

CREATE TRIGGER job_refuse_unrecorded_insert AFTER INSERT ON job WHEN NOT EXISTS (SELECT 1 FROM journal WHERE subject_id = NEW.id AND machine = 'job' AND seq = NEW.version)
BEGIN
  SELECT RAISE(ABORT, 'milepost: job: this move has no journal entry; one made by a trigger on the journal needs PRAGMA recursive_triggers = ON');
END;

CREATE TRIGGER job_refuse_unrecorded_move AFTER UPDATE OF version ON job WHEN NOT EXISTS (SELECT 1 FROM journal WHERE subject_id = NEW.id AND machine = 'job' AND seq = NEW.version)
BEGIN
  SELECT RAISE(ABORT, 'milepost: job: this move has no journal entry; one made by a trigger on the journal needs PRAGMA recursive_triggers = ON');
END;

CREATE TRIGGER job_journal_insert AFTER INSERT ON job
BEGIN
  INSERT INTO journal (machine, subject_id, seq, move, from_state, to_state, at, actor, fence, detail)
  VALUES ('job', NEW.id, NEW.version, NEW.move, NULL, NEW.state,
          CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + coalesce((SELECT offset_us FROM clock), 0), NEW.actor, NEW.fence, NEW.detail);
  INSERT INTO feed (subject_id, machine, seq, at)
  SELECT NEW.id, 'job', NEW.version, CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + coalesce((SELECT offset_us FROM clock), 0) FROM feed_switch WHERE until > 0;
END;

CREATE TRIGGER job_journal_move AFTER UPDATE ON job WHEN NEW.version <> OLD.version
BEGIN
  INSERT INTO journal (machine, subject_id, seq, move, from_state, to_state, at, actor, fence, detail)
  VALUES ('job', NEW.id, NEW.version, NEW.move, OLD.state, NEW.state,
          CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + coalesce((SELECT offset_us FROM clock), 0), NEW.actor, NEW.fence, NEW.detail);
  INSERT INTO feed (subject_id, machine, seq, at)
  SELECT NEW.id, 'job', NEW.version, CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + coalesce((SELECT offset_us FROM clock), 0) FROM feed_switch WHERE until > 0;
  -- A move by hand that did not count itself is counted here.
  UPDATE job
     SET errors = OLD.errors + CASE WHEN NEW.move IN ('retry', 'fail') THEN 1 ELSE 0 END,
         losses = OLD.losses + CASE WHEN NEW.move = 'lose' THEN 1 ELSE 0 END,
         polls = OLD.polls + CASE WHEN NEW.move = 'later' THEN 1 ELSE 0 END,
         releases = OLD.releases + CASE WHEN NEW.move = 'release' THEN 1 ELSE 0 END
   WHERE id = NEW.id
     AND ((NEW.move IN ('retry', 'fail') AND NEW.errors = OLD.errors)
      OR (NEW.move = 'lose' AND NEW.losses = OLD.losses)
      OR (NEW.move = 'later' AND NEW.polls = OLD.polls)
      OR (NEW.move = 'release' AND NEW.releases = OLD.releases));
END;
-- end rendered: job
