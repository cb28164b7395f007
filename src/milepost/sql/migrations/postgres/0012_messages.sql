-- Final messages. Whoever ends a job or a run that has a channel, a hand at a prompt included, writes
-- its message by the same statement: one, under an id made of what it is about. A relay delivers it,
-- or whoever it is for pulls it. Messages that come in are remembered, so that none makes two jobs.

-- Nothing ever wrote to the table that stood here.
DROP TABLE outbox;
CREATE SEQUENCE outbox_n;
CREATE TABLE outbox (
  id text PRIMARY KEY,                       -- <machine>_<subject>_<seq>, whenever it is delivered
  machine text NOT NULL,
  subject_id uuid NOT NULL,
  seq integer NOT NULL,                      -- the version that its subject has from the move told of
  n bigint NOT NULL DEFAULT nextval('outbox_n'),
  line uuid NOT NULL,                        -- a job and its reruns: their messages keep their order
  channel text NOT NULL,
  tenant text NOT NULL,
  queue text NOT NULL,
  kind text NOT NULL,
  state text NOT NULL,
  trace text,
  created_at timestamptz NOT NULL,
  due_at timestamptz NOT NULL,               -- while it is under way: when others may try
  fence bigint NOT NULL DEFAULT 0,           -- grows by one whenever somebody takes it
  attempts integer NOT NULL DEFAULT 0,       -- deliveries that failed
  place bigint,                              -- for who pulls: given when it is first offered
  delivered_at timestamptz,
  dead_at timestamptz,
  error text,
  UNIQUE (machine, subject_id, seq)
);
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
  name text PRIMARY KEY,
  kind text NOT NULL DEFAULT 'pull',
  target text,
  tenant text,                               -- whose it is, '*': every tenant's; NULL: nobody declared it
  places bigint NOT NULL DEFAULT 0,          -- the last place that was given
  stopped_at timestamptz,
  stopped_by text,
  reason text,
  seen_at timestamptz                        -- when a program that declares it last ran
);

-- What came in as a message: the job or run it became, or why it became none.
CREATE TABLE inbox (
  source text NOT NULL,
  message_id text NOT NULL,
  at timestamptz NOT NULL,
  job_id uuid,
  run_id uuid,
  error text,
  content bytea,                             -- the beginning of one that was refused
  PRIMARY KEY (source, message_id)
);
CREATE INDEX inbox_old ON inbox (at);
CREATE INDEX inbox_refused ON inbox (source, at) WHERE error IS NOT NULL;

-- Runs with its owner's rights: who ends a job needs none on the outbox.
CREATE FUNCTION milepost_announce() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  before uuid;
  moment timestamptz := milepost_now();
BEGIN
  IF (TG_RELID IN (to_regclass('job'), to_regclass('run'))) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a table that this function serves', TG_RELID::regclass;
  END IF;
  before := NEW.rerun_of;
  IF TG_TABLE_NAME = 'run' THEN
    before := coalesce(NEW.resumes, before);
  END IF;
  INSERT INTO outbox (id, machine, subject_id, seq, line, channel, tenant, queue, kind, state, trace,
                      created_at, due_at)
  VALUES (format('%s_%s_%s', TG_TABLE_NAME, NEW.id, NEW.version), TG_TABLE_NAME, NEW.id, NEW.version,
          coalesce((SELECT line FROM outbox
                     WHERE machine = TG_TABLE_NAME AND subject_id = before LIMIT 1), before, NEW.id),
          NEW.channel, NEW.tenant, NEW.queue, NEW.kind, NEW.state, NEW.trace, moment, moment);
  RETURN NULL;
END $$;

-- The gate of a run's step opened: told once, with the run's move that opened it.
CREATE FUNCTION milepost_announce_gate() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  moment timestamptz := milepost_now();
BEGIN
  IF (TG_RELID = to_regclass('step')) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a table that this function serves', TG_RELID::regclass;
  END IF;
  INSERT INTO outbox (id, machine, subject_id, seq, line, channel, tenant, queue, kind, state, trace,
                      created_at, due_at)
  SELECT format('run_%s_%s', run.id, run.version), 'run', run.id, run.version,
         coalesce((SELECT line FROM outbox
                    WHERE machine = 'run' AND subject_id = coalesce(run.resumes, run.rerun_of) LIMIT 1),
                  run.resumes, run.rerun_of, run.id),
         NEW.channel, run.tenant, run.queue, run.kind, run.state, run.trace, moment, moment
    FROM run WHERE run.id = NEW.run_id;
  RETURN NULL;
END $$;

-- A message stands for a subject that ended so, or a gate that opened so, or it is forged.
CREATE FUNCTION milepost_refuse_message() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  reason text;
BEGIN
  IF (TG_RELID = to_regclass('outbox')) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a table that this function serves', TG_RELID::regclass;
  END IF;
  IF TG_OP = 'INSERT' THEN
    IF (NEW.id IS NOT DISTINCT FROM format('%s_%s_%s', NEW.machine, NEW.subject_id, NEW.seq)
       AND NEW.fence = 0 AND NEW.attempts = 0 AND NEW.place IS NULL
       AND NEW.delivered_at IS NULL AND NEW.dead_at IS NULL
       AND CASE NEW.machine
             WHEN 'job' THEN EXISTS (
               SELECT 1 FROM job s
                WHERE s.id = NEW.subject_id AND s.version = NEW.seq
                  AND s.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
                  AND (s.channel, s.state, s.tenant) = (NEW.channel, NEW.state, NEW.tenant))
             WHEN 'run' THEN EXISTS (
               SELECT 1 FROM run s
                WHERE s.id = NEW.subject_id AND s.version = NEW.seq
                  AND s.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
                  AND (s.channel, s.state, s.tenant) = (NEW.channel, NEW.state, NEW.tenant))
               OR EXISTS (
               SELECT 1 FROM run s JOIN step ON step.run_id = s.id AND step.number = s.current_step
                WHERE s.id = NEW.subject_id AND s.version = NEW.seq AND s.move = 'advance'
                  AND step.gated AND step.opened
                  AND (step.channel, s.state, s.tenant) = (NEW.channel, NEW.state, NEW.tenant))
             ELSE false END) THEN
      RETURN NULL;
    END IF;
    reason := 'it is written by the move that it tells of';
  ELSIF TG_OP = 'UPDATE' THEN
    reason := 'what it says never changes, and a delivered one is history';
  ELSE
    reason := 'it leaves with its job or run, by retention';
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'MP002',
    MESSAGE = format('milepost: message %s: %s', coalesce(NEW.id, OLD.id), reason);
END $$;

CREATE FUNCTION milepost_refuse_unheard() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF (TG_RELID IN (to_regclass('job'), to_regclass('run'))) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a table that this function serves', TG_RELID::regclass;
  END IF;
  IF EXISTS (SELECT 1 FROM outbox WHERE machine = TG_TABLE_NAME AND subject_id = OLD.id
                AND delivered_at IS NULL AND dead_at IS NULL) THEN
    RAISE EXCEPTION USING ERRCODE = 'MP002',
      MESSAGE = format('milepost: %s %s: a message of it was not delivered yet', TG_TABLE_NAME,
                       OLD.id),
      HINT = 'milepost channels ack lets it go';
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER outbox_refuse_insert AFTER INSERT ON outbox FOR EACH ROW
  EXECUTE FUNCTION milepost_refuse_message();
CREATE TRIGGER outbox_refuse_change AFTER UPDATE ON outbox FOR EACH ROW
  WHEN (NEW.id IS DISTINCT FROM OLD.id
        OR NEW.machine IS DISTINCT FROM OLD.machine
        OR NEW.subject_id IS DISTINCT FROM OLD.subject_id
        OR NEW.seq IS DISTINCT FROM OLD.seq
        OR NEW.n IS DISTINCT FROM OLD.n
        OR NEW.line IS DISTINCT FROM OLD.line
        OR NEW.channel IS DISTINCT FROM OLD.channel
        OR NEW.tenant IS DISTINCT FROM OLD.tenant
        OR NEW.queue IS DISTINCT FROM OLD.queue
        OR NEW.kind IS DISTINCT FROM OLD.kind
        OR NEW.state IS DISTINCT FROM OLD.state
        OR NEW.trace IS DISTINCT FROM OLD.trace
        OR NEW.created_at IS DISTINCT FROM OLD.created_at
        OR NEW.fence < OLD.fence
        OR (OLD.delivered_at IS NOT NULL
        AND NOT (NEW.delivered_at IS NULL AND NEW.dead_at IS NULL AND NEW.fence = OLD.fence + 1
                 AND NEW.attempts = 0 AND NEW.place IS NULL AND NEW.error IS NULL))
        OR (NEW.delivered_at IS NOT NULL AND NEW.dead_at IS NOT NULL)
        OR (OLD.place IS NOT NULL AND NEW.place IS DISTINCT FROM OLD.place
            AND (coalesce(OLD.dead_at, OLD.delivered_at) IS NULL OR NEW.place IS NOT NULL)))
  EXECUTE FUNCTION milepost_refuse_message();
CREATE TRIGGER outbox_refuse_delete BEFORE DELETE ON outbox FOR EACH ROW
  WHEN (pg_trigger_depth() = 0
        OR current_setting('milepost.retaining', true) IS DISTINCT FROM 'on')
  EXECUTE FUNCTION milepost_refuse_message();
CREATE TRIGGER outbox_refuse_truncate BEFORE TRUNCATE ON outbox FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_refuse_hand();

-- A WHEN that is false costs a job without a channel next to nothing.
CREATE TRIGGER job_c_announce AFTER UPDATE ON job FOR EACH ROW
  WHEN (NEW.channel IS NOT NULL
        AND NEW.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
        AND OLD.state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED'))
  EXECUTE FUNCTION milepost_announce();
CREATE TRIGGER run_c_announce AFTER UPDATE ON run FOR EACH ROW
  WHEN (NEW.channel IS NOT NULL
        AND NEW.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
        AND OLD.state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED'))
  EXECUTE FUNCTION milepost_announce();
CREATE TRIGGER step_announce AFTER UPDATE ON step FOR EACH ROW
  WHEN (NEW.channel IS NOT NULL AND NEW.opened AND NOT OLD.opened)
  EXECUTE FUNCTION milepost_announce_gate();
CREATE TRIGGER job_a_refuse_unheard AFTER DELETE ON job FOR EACH ROW
  WHEN (OLD.channel IS NOT NULL)
  EXECUTE FUNCTION milepost_refuse_unheard();
CREATE TRIGGER run_a_refuse_unheard AFTER DELETE ON run FOR EACH ROW
  WHEN (OLD.channel IS NOT NULL OR OLD.mode IS NOT NULL)
  EXECUTE FUNCTION milepost_refuse_unheard();

-- What ended before there were messages asked for one all the same.
INSERT INTO outbox (id, machine, subject_id, seq, line, channel, tenant, queue, kind, state, trace,
                    created_at, due_at)
SELECT format('job_%s_%s', id, version), 'job', id, version, coalesce(rerun_of, id), channel, tenant,
       queue, kind, state, trace, milepost_now(), milepost_now()
  FROM job WHERE channel IS NOT NULL AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
 ORDER BY id;
INSERT INTO outbox (id, machine, subject_id, seq, line, channel, tenant, queue, kind, state, trace,
                    created_at, due_at)
SELECT format('run_%s_%s', id, version), 'run', id, version, coalesce(resumes, rerun_of, id), channel,
       tenant, queue, kind, state, trace, milepost_now(), milepost_now()
  FROM run WHERE channel IS NOT NULL AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
 ORDER BY id;
