-- Workers and their leases, queues, and messages that leave with a commit.

CREATE TABLE worker (
  id text PRIMARY KEY,
  state text NOT NULL,
  move text NOT NULL,
  slots text,                                -- JSON: how many slots stand in each state
  host text,
  pid integer,
  exit_code integer,                        -- of its process, if somebody saw it end; of a signal, less than 0
  program text,
  queues text,
  kinds text,
  started_at timestamptz NOT NULL DEFAULT milepost_now(),
  heartbeat_at timestamptz NOT NULL DEFAULT milepost_now(),
  lease_until timestamptz NOT NULL DEFAULT milepost_now(),
  lease_us bigint NOT NULL DEFAULT 30000000  -- its length: no lease reaches further ahead
) WITH (fillfactor = 50);
CREATE INDEX worker_live ON worker (lease_until) WHERE state <> 'STOPPED';

CREATE TABLE queue (
  name text PRIMARY KEY,
  transport text NOT NULL DEFAULT 'store',
  paused boolean NOT NULL DEFAULT false,
  paused_at timestamptz,
  paused_by text,
  reason text                                -- why it is paused
);

-- How many jobs may wait in a queue. Apart from it: workers declare bounds, and pause nothing.
CREATE TABLE queue_bound (
  name text PRIMARY KEY,
  max_waiting integer CHECK (max_waiting >= 1)
);

-- The job that is created when one of a kind fails, as workers declare it.
CREATE TABLE followup (
  kind text NOT NULL,
  kind_version integer NOT NULL,
  template text NOT NULL,
  PRIMARY KEY (kind, kind_version)
);

-- Written by the transaction that ends its subject; delivered at least once, under one stable id.
CREATE TABLE outbox (
  id uuid PRIMARY KEY,
  machine text NOT NULL,
  subject_id uuid NOT NULL,
  seq integer NOT NULL,
  channel text NOT NULL,
  content bytea,
  trace text,
  created_at timestamptz NOT NULL DEFAULT milepost_now(),
  due_at timestamptz NOT NULL DEFAULT milepost_now(),
  attempts integer NOT NULL DEFAULT 0,
  delivered_at timestamptz,
  dead_at timestamptz,
  error text,
  UNIQUE (machine, subject_id, seq, channel)
);
CREATE INDEX outbox_due ON outbox (due_at) WHERE delivered_at IS NULL AND dead_at IS NULL;

-- One row per chore that only one worker should do at a time, for economy.
CREATE TABLE election (
  name text PRIMARY KEY,
  holder text NOT NULL,
  lease_until timestamptz NOT NULL,
  lease_us bigint NOT NULL
);

-- begin rendered: worker
CREATE FUNCTION milepost_refuse_worker() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  reason text;
BEGIN
  IF TG_OP = 'INSERT' THEN
    reason := 'a worker is created by boot, in STARTUP';
  ELSIF TG_OP = 'UPDATE' THEN
    reason :=
      CASE
        WHEN NEW.id IS DISTINCT FROM OLD.id
          THEN 'these never change: id'
        WHEN ((NEW.state IS DISTINCT FROM OLD.state
      OR NEW.move IS DISTINCT FROM OLD.move) AND (CASE NEW.move
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
          THEN 'this move is not declared from this state to that one'
        WHEN (OLD.state = 'STOPPED' AND (NEW.lease_until IS DISTINCT FROM OLD.lease_until))
          THEN 'a stopped worker cannot renew its lease'
      END;
  ELSE
    reason := 'only a stopped worker may be deleted';
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'MP001',
    MESSAGE = format('milepost: worker %s: %s', coalesce(NEW.id, OLD.id), reason),
    HINT = 'milepost machine worker shows every legal move';
END $$;

CREATE TRIGGER worker_a_refuse_insert AFTER INSERT ON worker FOR EACH ROW
  WHEN ((((NEW.move = 'boot' AND NEW.state = 'STARTUP')) IS NOT TRUE))
  EXECUTE FUNCTION milepost_refuse_worker();

CREATE TRIGGER worker_a_refuse_change AFTER UPDATE ON worker FOR EACH ROW
  WHEN ((NEW.id IS DISTINCT FROM OLD.id
      OR ((NEW.state IS DISTINCT FROM OLD.state
      OR NEW.move IS DISTINCT FROM OLD.move) AND (CASE NEW.move
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
      OR (OLD.state = 'STOPPED' AND (NEW.lease_until IS DISTINCT FROM OLD.lease_until))))
  EXECUTE FUNCTION milepost_refuse_worker();

CREATE TRIGGER worker_a_refuse_delete AFTER DELETE ON worker FOR EACH ROW
  WHEN (NOT (OLD.state = 'STOPPED'))
  EXECUTE FUNCTION milepost_refuse_worker();

CREATE TRIGGER worker_a_refuse_truncate BEFORE TRUNCATE ON worker FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_refuse_hand();
-- end rendered: worker
