-- Workers and their leases, queues, and messages that leave with a commit.

CREATE TABLE worker (
  id TEXT PRIMARY KEY,
  state TEXT NOT NULL,
  move TEXT NOT NULL,
  slots TEXT,                                -- JSON: how many slots stand in each state
  host TEXT,
  pid INTEGER,
  exit_code INTEGER,                        -- of its process, if somebody saw it end; of a signal, less than 0
  program TEXT,
  queues TEXT,
  kinds TEXT,
  started_at INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000),
  heartbeat_at INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000),
  lease_until INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000),
  lease_us INTEGER NOT NULL DEFAULT 30000000 -- its length: no lease reaches further ahead
) STRICT;
CREATE INDEX worker_live ON worker (lease_until) WHERE state <> 'STOPPED';

CREATE TABLE queue (
  name TEXT PRIMARY KEY,
  transport TEXT NOT NULL DEFAULT 'store',
  paused INTEGER NOT NULL DEFAULT 0,
  paused_at INTEGER,
  paused_by TEXT,
  reason TEXT                                -- why it is paused
) STRICT;

-- How many jobs may wait in a queue. Apart from it: workers declare bounds, and pause nothing.
CREATE TABLE queue_bound (
  name TEXT PRIMARY KEY,
  max_waiting INTEGER CHECK (max_waiting >= 1)
) STRICT;

-- The job that is created when one of a kind fails, as workers declare it.
CREATE TABLE followup (
  kind TEXT NOT NULL,
  kind_version INTEGER NOT NULL,
  template TEXT NOT NULL,
  PRIMARY KEY (kind, kind_version)
) STRICT;

-- Written by the transaction that ends its subject; delivered at least once, under one stable id.
CREATE TABLE outbox (
  id TEXT PRIMARY KEY,
  machine TEXT NOT NULL,
  subject_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  channel TEXT NOT NULL,
  content BLOB,
  trace TEXT,
  created_at INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000),
  due_at INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000),
  attempts INTEGER NOT NULL DEFAULT 0,
  delivered_at INTEGER,
  dead_at INTEGER,
  error TEXT,
  UNIQUE (machine, subject_id, seq, channel)
) STRICT;
CREATE INDEX outbox_due ON outbox (due_at) WHERE delivered_at IS NULL AND dead_at IS NULL;

-- One row per chore that only one worker should do at a time, for economy.
CREATE TABLE election (
  name TEXT PRIMARY KEY,
  holder TEXT NOT NULL,
  lease_until INTEGER NOT NULL,
  lease_us INTEGER NOT NULL
) STRICT;

-- begin rendered: worker
CREATE TRIGGER worker_refuse_insert BEFORE INSERT ON worker
  WHEN ((EXISTS (SELECT 1 FROM worker WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM worker WHERE rowid = NEW.rowid))
      OR ((NEW.move = 'boot' AND NEW.state = 'STARTUP')) IS NOT TRUE)
BEGIN
  SELECT
    CASE
      WHEN (EXISTS (SELECT 1 FROM worker WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM worker WHERE rowid = NEW.rowid))
        THEN RAISE(ABORT, 'milepost: worker: this id exists')
      WHEN ((NEW.move = 'boot' AND NEW.state = 'STARTUP')) IS NOT TRUE
        THEN RAISE(ABORT, 'milepost: worker: a worker is created by boot, in STARTUP')
    END;
END;

-- A negative rowid would hide in the guard above, where an absent one reads as -1.
CREATE TRIGGER worker_refuse_rowid AFTER INSERT ON worker WHEN NEW.rowid < 1
BEGIN
  SELECT RAISE(ABORT, 'milepost: worker: rowids are positive');
END;

CREATE TRIGGER worker_refuse_change BEFORE UPDATE ON worker
  WHEN (NEW.rowid IS NOT OLD.rowid
      OR NEW.id IS NOT OLD.id
      OR ((NEW.state IS NOT OLD.state
      OR NEW.move IS NOT OLD.move) AND (CASE NEW.move
        WHEN 'connect' THEN OLD.state IN ('STARTUP', 'IDLE', 'ERROR_WAIT') AND NEW.state = 'CONNECTING'
        WHEN 'recover' THEN OLD.state IN ('CONNECTING', 'POLLING') AND NEW.state = 'RECOVERY'
        WHEN 'poll' THEN OLD.state = 'RECOVERY' AND NEW.state = 'POLLING'
        WHEN 'back_off' THEN OLD.state = 'POLLING' AND NEW.state = 'BACKOFF'
        WHEN 'rest' THEN OLD.state = 'BACKOFF' AND NEW.state = 'IDLE'
        WHEN 'error' THEN OLD.state IN ('STARTUP', 'CONNECTING', 'RECOVERY', 'POLLING', 'BACKOFF', 'IDLE') AND NEW.state = 'ERROR_WAIT'
        WHEN 'drain' THEN OLD.state IN ('STARTUP', 'CONNECTING', 'RECOVERY', 'POLLING', 'BACKOFF', 'IDLE', 'ERROR_WAIT') AND NEW.state = 'DRAINING'
        WHEN 'stop' THEN OLD.state = 'DRAINING' AND NEW.state = 'STOPPED'
        WHEN 'bury' THEN OLD.state IN ('STARTUP', 'CONNECTING', 'RECOVERY', 'POLLING', 'BACKOFF', 'IDLE', 'ERROR_WAIT', 'DRAINING') AND NEW.state = 'STOPPED'
        ELSE false END) IS NOT TRUE)
      OR (OLD.state = 'STOPPED' AND (NEW.lease_until IS NOT OLD.lease_until)))
BEGIN
  SELECT
    CASE
      WHEN NEW.rowid IS NOT OLD.rowid
        THEN RAISE(ABORT, 'milepost: worker: the rowid is fixed')
      WHEN NEW.id IS NOT OLD.id
        THEN RAISE(ABORT, 'milepost: worker: these never change: id')
      WHEN ((NEW.state IS NOT OLD.state
      OR NEW.move IS NOT OLD.move) AND (CASE NEW.move
        WHEN 'connect' THEN OLD.state IN ('STARTUP', 'IDLE', 'ERROR_WAIT') AND NEW.state = 'CONNECTING'
        WHEN 'recover' THEN OLD.state IN ('CONNECTING', 'POLLING') AND NEW.state = 'RECOVERY'
        WHEN 'poll' THEN OLD.state = 'RECOVERY' AND NEW.state = 'POLLING'
        WHEN 'back_off' THEN OLD.state = 'POLLING' AND NEW.state = 'BACKOFF'
        WHEN 'rest' THEN OLD.state = 'BACKOFF' AND NEW.state = 'IDLE'
        WHEN 'error' THEN OLD.state IN ('STARTUP', 'CONNECTING', 'RECOVERY', 'POLLING', 'BACKOFF', 'IDLE') AND NEW.state = 'ERROR_WAIT'
        WHEN 'drain' THEN OLD.state IN ('STARTUP', 'CONNECTING', 'RECOVERY', 'POLLING', 'BACKOFF', 'IDLE', 'ERROR_WAIT') AND NEW.state = 'DRAINING'
        WHEN 'stop' THEN OLD.state = 'DRAINING' AND NEW.state = 'STOPPED'
        WHEN 'bury' THEN OLD.state IN ('STARTUP', 'CONNECTING', 'RECOVERY', 'POLLING', 'BACKOFF', 'IDLE', 'ERROR_WAIT', 'DRAINING') AND NEW.state = 'STOPPED'
        ELSE false END) IS NOT TRUE)
        THEN RAISE(ABORT, 'milepost: worker: this move is not declared from this state to that one')
      WHEN (OLD.state = 'STOPPED' AND (NEW.lease_until IS NOT OLD.lease_until))
        THEN RAISE(ABORT, 'milepost: worker: a stopped worker cannot renew its lease')
    END;
END;

CREATE TRIGGER worker_refuse_delete BEFORE DELETE ON worker
  WHEN NOT (OLD.state = 'STOPPED')
BEGIN
  SELECT RAISE(ABORT, 'milepost: worker: only a stopped worker may be deleted');
END;
-- end rendered: worker
