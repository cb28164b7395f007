-- Final messages. Whoever ends a job or a run that has a channel, a hand at a prompt included, writes
-- its message by the same statement: one, under an id made of what it is about. A relay delivers it,
-- or whoever it is for pulls it. Messages that come in are remembered, so that none makes two jobs.

-- Nothing ever wrote to the table that stood here.
DROP TABLE outbox;
CREATE TABLE outbox (
  id TEXT PRIMARY KEY NOT NULL,              -- <machine>_<subject>_<seq>, whenever it is delivered
  machine TEXT NOT NULL,
  subject_id TEXT NOT NULL,
  seq INTEGER NOT NULL,                      -- the version that its subject has from the move told of
  n INTEGER NOT NULL UNIQUE,
  line TEXT NOT NULL,                        -- a job and its reruns: their messages keep their order
  channel TEXT NOT NULL,
  tenant TEXT NOT NULL,
  queue TEXT NOT NULL,
  kind TEXT NOT NULL,
  state TEXT NOT NULL,
  trace TEXT,
  created_at INTEGER NOT NULL,
  due_at INTEGER NOT NULL,                   -- while it is under way: when others may try
  fence INTEGER NOT NULL DEFAULT 0,          -- grows by one whenever somebody takes it
  attempts INTEGER NOT NULL DEFAULT 0,       -- deliveries that failed
  place INTEGER,                             -- for who pulls: given when it is first offered
  delivered_at INTEGER,
  dead_at INTEGER,
  error TEXT,
  UNIQUE (machine, subject_id, seq)
) STRICT;
CREATE INDEX outbox_due ON outbox (channel, due_at)
  WHERE delivered_at IS NULL AND dead_at IS NULL;
CREATE INDEX outbox_line ON outbox (channel, line, n)
  WHERE delivered_at IS NULL AND dead_at IS NULL;
CREATE INDEX outbox_new ON outbox (channel, n)
  WHERE place IS NULL AND delivered_at IS NULL AND dead_at IS NULL;
CREATE INDEX outbox_place ON outbox (channel, place)
  WHERE place IS NOT NULL AND delivered_at IS NULL AND dead_at IS NULL;
CREATE INDEX outbox_old ON outbox (created_at)
  WHERE delivered_at IS NULL AND dead_at IS NULL;
CREATE INDEX outbox_dead ON outbox (channel, n) WHERE dead_at IS NOT NULL;
CREATE INDEX outbox_listed ON outbox (channel, n);

-- What programs declare, and what a receiver that is gone (410) or an operator stopped. Secrets and
-- whole addresses stay with the programs.
CREATE TABLE channel (
  name TEXT PRIMARY KEY NOT NULL,
  kind TEXT NOT NULL DEFAULT 'pull',
  target TEXT,
  tenant TEXT,                               -- whose it is, '*': every tenant's; NULL: nobody declared it
  places INTEGER NOT NULL DEFAULT 0,         -- the last place that was given
  stopped_at INTEGER,
  stopped_by TEXT,
  reason TEXT,
  seen_at INTEGER                            -- when a program that declares it last ran
) STRICT;

-- What came in as a message: the job or run it became, or why it became none.
CREATE TABLE inbox (
  source TEXT NOT NULL,
  message_id TEXT NOT NULL,
  at INTEGER NOT NULL,
  job_id TEXT,
  run_id TEXT,
  error TEXT,
  content BLOB,                              -- the beginning of one that was refused
  PRIMARY KEY (source, message_id)
) STRICT;
CREATE INDEX inbox_old ON inbox (at);
CREATE INDEX inbox_refused ON inbox (source, at) WHERE error IS NOT NULL;

-- A message stands for a subject that ended so, or a gate that opened so, or it is forged. Whatever a UNIQUE index would find is
-- found here first: OR REPLACE deletes what is in its way.
CREATE TRIGGER outbox_refuse_insert BEFORE INSERT ON outbox
  WHEN NEW.id IS NOT NEW.machine || '_' || NEW.subject_id || '_' || NEW.seq
    OR NEW.fence IS NOT 0 OR NEW.attempts IS NOT 0 OR NEW.place IS NOT NULL
    OR NEW.delivered_at IS NOT NULL OR NEW.dead_at IS NOT NULL
    OR EXISTS (SELECT 1 FROM outbox WHERE id = NEW.id OR n = NEW.n OR rowid = NEW.rowid)
    OR EXISTS (SELECT 1 FROM outbox
                WHERE machine = NEW.machine AND subject_id = NEW.subject_id AND seq = NEW.seq)
    OR NOT CASE NEW.machine
           WHEN 'job' THEN EXISTS (
             SELECT 1 FROM job s
              WHERE s.id = NEW.subject_id AND s.version = NEW.seq
                AND s.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
                AND s.channel = NEW.channel AND s.state = NEW.state AND s.tenant = NEW.tenant)
           WHEN 'run' THEN EXISTS (
             SELECT 1 FROM run s
              WHERE s.id = NEW.subject_id AND s.version = NEW.seq
                AND s.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
                AND s.channel = NEW.channel AND s.state = NEW.state AND s.tenant = NEW.tenant)
             OR EXISTS (
             SELECT 1 FROM run s JOIN step ON step.run_id = s.id AND step.number = s.current_step
              WHERE s.id = NEW.subject_id AND s.version = NEW.seq AND s.move = 'advance'
                AND step.gated AND step.opened AND step.channel = NEW.channel
                AND s.state = NEW.state AND s.tenant = NEW.tenant)
           ELSE false END
BEGIN
  SELECT RAISE(ABORT, 'milepost: message: it is written by the move that it tells of');
END;
CREATE TRIGGER outbox_refuse_change BEFORE UPDATE ON outbox
  WHEN NEW.id IS NOT OLD.id
    OR NEW.machine IS NOT OLD.machine
    OR NEW.subject_id IS NOT OLD.subject_id
    OR NEW.seq IS NOT OLD.seq
    OR NEW.n IS NOT OLD.n
    OR NEW.line IS NOT OLD.line
    OR NEW.channel IS NOT OLD.channel
    OR NEW.tenant IS NOT OLD.tenant
    OR NEW.queue IS NOT OLD.queue
    OR NEW.kind IS NOT OLD.kind
    OR NEW.state IS NOT OLD.state
    OR NEW.trace IS NOT OLD.trace
    OR NEW.created_at IS NOT OLD.created_at
    OR NEW.rowid IS NOT OLD.rowid
    OR NEW.fence IS NULL OR NEW.fence < OLD.fence
    OR (OLD.delivered_at IS NOT NULL
        AND NOT (NEW.delivered_at IS NULL AND NEW.dead_at IS NULL AND NEW.fence = OLD.fence + 1
                 AND NEW.attempts = 0 AND NEW.place IS NULL AND NEW.error IS NULL))
    OR (NEW.delivered_at IS NOT NULL AND NEW.dead_at IS NOT NULL)
    OR (OLD.place IS NOT NULL AND NEW.place IS NOT OLD.place
        AND (coalesce(OLD.dead_at, OLD.delivered_at) IS NULL OR NEW.place IS NOT NULL))
BEGIN
  SELECT RAISE(ABORT, 'milepost: message: what it says never changes, and a delivered one is history');
END;
CREATE TRIGGER outbox_refuse_delete BEFORE DELETE ON outbox
  WHEN coalesce((SELECT active FROM retention), 0) <> 1
    OR CASE OLD.machine WHEN 'job' THEN EXISTS (SELECT 1 FROM job WHERE id = OLD.subject_id)
                        WHEN 'run' THEN EXISTS (SELECT 1 FROM run WHERE id = OLD.subject_id)
                        ELSE true END
BEGIN
  SELECT RAISE(ABORT, 'milepost: message: it leaves with its job or run, by retention');
END;

-- One trigger for whatever the end of a job brings about: to run a second one, only to see that it
-- has nothing to do, would cost every move half a microsecond. (Words, not a list: of a list SQLite
-- makes a table each time.)
DROP TRIGGER job_steps_end;
CREATE TRIGGER job_end AFTER UPDATE ON job
  WHEN (NEW.run_id IS NOT NULL OR NEW.channel IS NOT NULL)
   AND NEW.state <> OLD.state
   AND (NEW.state = 'SUCCEEDED' OR NEW.state = 'FAILED' OR NEW.state = 'CANCELLED')
BEGIN
  UPDATE step_count
     SET open = open - 1,
         succeeded = succeeded + (NEW.state = 'SUCCEEDED'),
         failed = failed + (NEW.state = 'FAILED'),
         cancelled = cancelled + (NEW.state = 'CANCELLED')
   WHERE run_id = NEW.run_id AND step = NEW.step
     AND slot = coalesce(NEW.ordinal, 0) % (SELECT slots FROM step
                                             WHERE run_id = NEW.run_id AND number = NEW.step);
  INSERT INTO outbox (id, machine, subject_id, seq, n, line, channel, tenant, queue, kind, state, trace,
                      created_at, due_at)
  SELECT 'job_' || NEW.id || '_' || NEW.version, 'job', NEW.id, NEW.version,
         (SELECT coalesce(max(n), 0) + 1 FROM outbox),
         coalesce((SELECT line FROM outbox WHERE machine = 'job' AND subject_id = NEW.rerun_of),
                  NEW.rerun_of, NEW.id),
         NEW.channel, NEW.tenant, NEW.queue, NEW.kind, NEW.state, NEW.trace, moment, moment
    FROM (SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + coalesce((SELECT offset_us FROM clock), 0)
                 AS moment)
   WHERE NEW.channel IS NOT NULL;
END;

CREATE TRIGGER run_announce AFTER UPDATE ON run
  WHEN NEW.channel IS NOT NULL
   AND NEW.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
   AND OLD.state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
BEGIN
  INSERT INTO outbox (id, machine, subject_id, seq, n, line, channel, tenant, queue, kind, state, trace,
                      created_at, due_at)
  SELECT 'run_' || NEW.id || '_' || NEW.version, 'run', NEW.id, NEW.version,
         (SELECT coalesce(max(n), 0) + 1 FROM outbox),
         coalesce((SELECT line FROM outbox WHERE machine = 'run' AND subject_id = coalesce(NEW.resumes, NEW.rerun_of)),
                  coalesce(NEW.resumes, NEW.rerun_of), NEW.id),
         NEW.channel, NEW.tenant, NEW.queue, NEW.kind, NEW.state, NEW.trace, moment, moment
    FROM (SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + coalesce((SELECT offset_us FROM clock), 0)
                 AS moment);
END;

-- The gate of a run's step opened: told once, with the run's move that opened it.
CREATE TRIGGER step_announce AFTER UPDATE ON step
  WHEN NEW.channel IS NOT NULL AND NEW.opened AND NOT OLD.opened
BEGIN
  INSERT INTO outbox (id, machine, subject_id, seq, n, line, channel, tenant, queue, kind, state, trace,
                      created_at, due_at)
  SELECT 'run_' || run.id || '_' || run.version, 'run', run.id, run.version,
         (SELECT coalesce(max(n), 0) + 1 FROM outbox),
         coalesce((SELECT line FROM outbox WHERE machine = 'run' AND subject_id = coalesce(run.resumes, run.rerun_of)),
                  coalesce(run.resumes, run.rerun_of), run.id),
         NEW.channel, run.tenant, run.queue, run.kind, run.state, run.trace, moment, moment
    FROM run,
         (SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + coalesce((SELECT offset_us FROM clock), 0)
                 AS moment)
   WHERE run.id = NEW.run_id;
END;

CREATE TRIGGER job_refuse_unheard BEFORE DELETE ON job
  WHEN OLD.channel IS NOT NULL
   AND EXISTS (SELECT 1 FROM outbox WHERE machine = 'job' AND subject_id = OLD.id
                  AND delivered_at IS NULL AND dead_at IS NULL)
BEGIN
  SELECT RAISE(ABORT, 'milepost: job: a message of it was not delivered yet; milepost channels ack lets it go');
END;

CREATE TRIGGER run_refuse_unheard BEFORE DELETE ON run
  WHEN (OLD.channel IS NOT NULL OR OLD.mode IS NOT NULL)
   AND EXISTS (SELECT 1 FROM outbox WHERE machine = 'run' AND subject_id = OLD.id
                  AND delivered_at IS NULL AND dead_at IS NULL)
BEGIN
  SELECT RAISE(ABORT, 'milepost: run: a message of it was not delivered yet; milepost channels ack lets it go');
END;

-- What ended before there were messages asked for one all the same.
INSERT INTO outbox (id, machine, subject_id, seq, n, line, channel, tenant, queue, kind, state, trace,
                    created_at, due_at)
SELECT 'job_' || id || '_' || version, 'job', id, version,
       (SELECT coalesce(max(n), 0) FROM outbox) + row_number() OVER (ORDER BY id), coalesce(rerun_of, id),
       channel, tenant, queue, kind, state, trace, moment, moment
  FROM job, (SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + coalesce((SELECT offset_us FROM clock), 0)
                    AS moment)
 WHERE channel IS NOT NULL AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED');

INSERT INTO outbox (id, machine, subject_id, seq, n, line, channel, tenant, queue, kind, state, trace,
                    created_at, due_at)
SELECT 'run_' || id || '_' || version, 'run', id, version,
       (SELECT coalesce(max(n), 0) FROM outbox) + row_number() OVER (ORDER BY id), coalesce(resumes, rerun_of, id),
       channel, tenant, queue, kind, state, trace, moment, moment
  FROM run, (SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + coalesce((SELECT offset_us FROM clock), 0)
                    AS moment)
 WHERE channel IS NOT NULL AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED');
