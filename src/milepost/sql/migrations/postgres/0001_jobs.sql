-- Jobs, their journal and the clock.
--
-- Every UPDATE of `job` is a move: triggers rendered from the declared machine refuse what it does
-- not declare and write the journal in the same statement. Nothing else writes the journal.

CREATE TABLE clock (
  id integer PRIMARY KEY DEFAULT 1 CHECK (id = 1),
  offset_us bigint NOT NULL DEFAULT 0        -- moved by tests; zero in production
);
INSERT INTO clock DEFAULT VALUES;

-- The one clock that decides: the database's own, plus the offset of the tests. The schema's name is
-- written into the body, because a SET clause would cost every call a dozen microseconds.
DO $do$ BEGIN
  EXECUTE format($f$
    CREATE FUNCTION milepost_now() RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
    BEGIN
      RETURN clock_timestamp() + (SELECT offset_us FROM %I.clock) * interval '1 microsecond';
    END $$ $f$, current_schema());
END $do$;

-- Below its start stand jobs of ordered keys that come back (FIRST_PLACE in store/catalog.py).
CREATE SEQUENCE queued_seq START WITH 1125899906842624;

CREATE TABLE job (
  id uuid NOT NULL,
  fence bigint NOT NULL DEFAULT 0,           -- grows by one with every claim
  queued_seq bigint NOT NULL DEFAULT nextval('queued_seq'),
  lease_seq bigint,                          -- drawn from it by some claims under a limit
  created_at timestamptz NOT NULL DEFAULT milepost_now(),
  due_at timestamptz,                        -- WAITING and RETRYING: when it goes on
  delay_us bigint,                           -- likewise: how long after its last entry, at least
  started_at timestamptz,                    -- its first claim
  finished_at timestamptz,
  deadline_at timestamptz,                   -- must be final by then
  start_by timestamptz,                      -- must have started by then
  timeout_us bigint,                         -- one attempt's time
  version integer NOT NULL DEFAULT 1,        -- the seq of its last journal entry
  kind_version integer NOT NULL DEFAULT 1,
  errors integer NOT NULL DEFAULT 0,
  losses integer NOT NULL DEFAULT 0,
  polls integer NOT NULL DEFAULT 0,
  releases integer NOT NULL DEFAULT 0,
  retries integer NOT NULL DEFAULT 3 CHECK (retries >= 0),
  recoveries integer CHECK (recoveries >= 0),  -- NULL: losses count among the retries
  poll_limit integer NOT NULL DEFAULT 1000,
  poison_limit integer NOT NULL DEFAULT 3,
  step integer,
  ordinal bigint,
  run_id uuid,
  parent_id uuid,
  rerun_of uuid,
  origin_id uuid,                           -- the job whose idempotency key and steps it goes on with
  priority smallint NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 9),
  served boolean,                            -- claimed while its queue had a limit of its own
  units double precision CHECK (units > 0),  -- taken from its limit's rate by a claim; NULL: one
  state text NOT NULL,
  move text NOT NULL,
  actor text,
  detail text,
  worker_id text,
  tenant text NOT NULL DEFAULT '',
  kind text NOT NULL,
  queue text NOT NULL DEFAULT 'default',
  phase text,
  cause text,
  cancel_reason text,                        -- set by a note: its worker was asked to stop
  unfit text,                                -- the signatures that its arguments do not fit
  codec text NOT NULL DEFAULT 'json',
  unique_key text,
  limit_key text COLLATE "C",                -- which limit it is under: stripe/rule/key
  trace text,
  channel text,
  policy text,
  error text,
  error_type text,                           -- of its last error, for those who look for it
  error_code text,
  fingerprint text,
  tags jsonb,
  payload bytea,
  result bytea,
  CONSTRAINT job_pkey PRIMARY KEY (id)
);

-- Jobs without a limit stand together, in the order of their arrival; those with one key by key.
CREATE INDEX job_claim ON job (queue, priority DESC, limit_key, queued_seq) WHERE state = 'QUEUED';
-- Those with a limit in the order of their arrival; the stripe, so that others are passed over in the index. No
-- other condition implies its own: the planner would look for the jobs of one key here.
CREATE INDEX job_front ON job (queue, priority DESC, queued_seq, left(limit_key, 1))
  WHERE state = 'QUEUED' AND coalesce(limit_key, '') <> '';
-- Live leases under a limit, of a key and of a queue. Not by state: the planner would count them by job_held. Claims
-- of one key, or of one such queue, follow each other, and where they draw numbers those grow: who knows that all below
-- a number have ended passes them by, whatever an old snapshot keeps of them.
CREATE INDEX job_busy ON job (limit_key, lease_seq) WHERE worker_id IS NOT NULL AND limit_key IS NOT NULL;
CREATE INDEX job_served ON job (queue, lease_seq) WHERE worker_id IS NOT NULL AND served;
-- Those that hold the turn of an ordered key between two attempts.
CREATE INDEX job_turn ON job (limit_key)
  WHERE limit_key IS NOT NULL AND fence > 0 AND state IN ('WAITING', 'RETRYING');
CREATE INDEX job_due ON job (due_at) WHERE state IN ('WAITING', 'RETRYING');
CREATE INDEX job_held ON job (worker_id) WHERE state = 'RUNNING';
CREATE INDEX job_unfit ON job (kind, kind_version) WHERE state = 'WAITING' AND unfit IS NOT NULL;
CREATE INDEX job_unsubmitted ON job (created_at) WHERE state = 'CREATED' AND run_id IS NULL;
CREATE INDEX job_deadline ON job
  (least(coalesce(deadline_at, start_by), coalesce(start_by, deadline_at)))
  WHERE (deadline_at IS NOT NULL OR start_by IS NOT NULL)
    AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED');
CREATE UNIQUE INDEX job_unique ON job (tenant, kind, unique_key)
  WHERE unique_key IS NOT NULL AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED');
CREATE INDEX job_run ON job (run_id, step, state) WHERE run_id IS NOT NULL;
-- A job is run again once, and in a run that resumes its own once: chains do not branch.
CREATE UNIQUE INDEX job_rerun ON job
  (rerun_of, (coalesce(run_id, '00000000-0000-0000-0000-000000000000'))) WHERE rerun_of IS NOT NULL;

-- One entry per move of a job or a run. Retention drops whole ranges of (time-ordered) subjects.
CREATE TABLE journal (
  subject_id uuid NOT NULL,
  at timestamptz NOT NULL,
  fence bigint NOT NULL,
  seq integer NOT NULL,
  machine text NOT NULL,
  move text NOT NULL,
  from_state text,
  to_state text NOT NULL,
  actor text,                                -- whoever the writer said it was
  detail text,
  db_user text NOT NULL DEFAULT session_user, -- who had logged in: the database knows
  PRIMARY KEY (subject_id, machine, seq)
) PARTITION BY RANGE (subject_id);
CREATE TABLE journal_default PARTITION OF journal DEFAULT;

CREATE FUNCTION milepost_refuse_hand() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'MP002',
    MESSAGE = format('milepost: %s on %s is refused: the journal is written by moves alone and '
                     'rows leave by retention', TG_OP, TG_TABLE_NAME);
END $$;

-- Depth alone would let in whatever a stranger's trigger writes.
CREATE TRIGGER journal_refuse_insert BEFORE INSERT ON journal FOR EACH ROW
  WHEN (pg_trigger_depth() = 0
        OR current_setting('milepost.journalling', true) IS DISTINCT FROM 'on')
  EXECUTE FUNCTION milepost_refuse_hand();
CREATE TRIGGER journal_refuse_change BEFORE UPDATE OR DELETE ON journal FOR EACH ROW
  EXECUTE FUNCTION milepost_refuse_hand();
CREATE TRIGGER journal_refuse_truncate BEFORE TRUNCATE ON journal FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_refuse_hand();
CREATE TRIGGER journal_refuse_truncate BEFORE TRUNCATE ON journal_default FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_refuse_hand();

-- How many jobs made a move, a row for each statement: nobody who counts waits for another. Maintenance
-- folds these rows into sums.
CREATE TABLE tally_delta (
  at timestamptz NOT NULL,
  count bigint NOT NULL,
  sum_us bigint NOT NULL DEFAULT 0,          -- of durations
  bucket smallint NOT NULL DEFAULT 0,        -- likewise: which one of the histogram
  name text NOT NULL,                        -- a move; 'wait' and 'run' are durations; 'remove': the row is gone
  queue text NOT NULL,
  kind text NOT NULL
) WITH (
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0
);

-- Both functions serve every journalled table; its name is the machine's. They run with the rights
-- of the schema's owner, so a writer needs none on the journal, and refuse to serve a stranger's
-- table of the same name. They run for every statement, so the clock is read in place and nothing
-- is PERFORMed: an assignment costs a tenth of a query.
CREATE FUNCTION milepost_journal_insert() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  before text := current_setting('milepost.journalling', true);
  pass text;
BEGIN
  IF (TG_RELID IN (to_regclass('job'), to_regclass('run'))) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a table that this function serves', TG_RELID::regclass;
  END IF;
  pass := set_config('milepost.journalling', 'on', true);
  IF TG_TABLE_NAME = 'job' THEN
    -- One statement: a second one took 4 % of a single submit.
    WITH counted AS (
      INSERT INTO tally_delta (at, count, name, queue, kind)
      SELECT (SELECT clock_timestamp() + offset_us * interval '1 microsecond' FROM clock),
             count(*), 'create', n.queue, n.kind
        FROM new_rows n
       GROUP BY n.queue, n.kind
    )
    INSERT INTO journal (machine, subject_id, seq, move, from_state, to_state, at, actor, fence, detail)
    SELECT 'job', n.id, n.version, n.move, NULL, n.state,
           (SELECT clock_timestamp() + offset_us * interval '1 microsecond' FROM clock),
           n.actor, n.fence, n.detail
      FROM new_rows n;
  ELSE
    INSERT INTO journal (machine, subject_id, seq, move, from_state, to_state, at, actor, fence, detail)
    SELECT TG_TABLE_NAME, n.id, n.version, n.move, NULL, n.state,
           (SELECT clock_timestamp() + offset_us * interval '1 microsecond' FROM clock),
           n.actor, n.fence, n.detail
      FROM new_rows n;
  END IF;
  pass := set_config('milepost.journalling', coalesce(before, ''), true);
  RETURN NULL;
END $$;

-- A cached plan may have been made for one row and be run for a hundred thousand: only a hash join
-- serves both.
CREATE FUNCTION milepost_journal_move() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
  SET enable_hashjoin = on SET enable_nestloop = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
  before text := current_setting('milepost.journalling', true);
  pass text;
  made text;
BEGIN
  IF (TG_RELID IN (to_regclass('job'), to_regclass('run'))) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a table that this function serves', TG_RELID::regclass;
  END IF;
  made := (SELECT move FROM new_rows LIMIT 1);
  -- A claim that found nothing is a statement too.
  IF made IS NULL THEN
    RETURN NULL;
  END IF;
  pass := set_config('milepost.journalling', 'on', true);
  INSERT INTO journal (machine, subject_id, seq, move, from_state, to_state, at, actor, fence, detail)
  SELECT TG_TABLE_NAME, n.id, n.version, n.move, o.state, n.state,
         (SELECT clock_timestamp() + offset_us * interval '1 microsecond' FROM clock),
         n.actor, n.fence, n.detail
    FROM new_rows n JOIN old_rows o ON o.id = n.id
   WHERE n.version <> o.version;
  -- A worker counts its own moves: to read all rows of a claim once more would cost it 3 %. A note changes
  -- no state; and where no entry was made, a counter was put right.
  IF FOUND AND TG_TABLE_NAME = 'job'
     AND made NOT IN ('claim', 'succeed', 'fail', 'retry', 'later', 'release', 'note', 'erase') THEN
    INSERT INTO tally_delta (at, count, name, queue, kind)
    SELECT (SELECT clock_timestamp() + offset_us * interval '1 microsecond' FROM clock),
           count(*), n.move, n.queue, n.kind
      FROM new_rows n
     GROUP BY n.move, n.queue, n.kind;
  END IF;
  pass := set_config('milepost.journalling', coalesce(before, ''), true);
  RETURN NULL;
END $$;

-- begin rendered: job
-- Called for unusual rows only: says which rule a bad one broke.
CREATE FUNCTION milepost_refuse_job() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  reason text;
  subject uuid;
BEGIN
  -- First: what is compared below is cast by whoever made the table's types.
  IF (TG_RELID = to_regclass('job')) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a table that this function serves', TG_RELID::regclass;
  END IF;
  IF TG_OP = 'INSERT' THEN
    subject := NEW.id;
    reason :=
      CASE
        WHEN NEW.version IS DISTINCT FROM 1
          THEN 'a new row has version 1'
        WHEN ((NEW.move = 'create' AND NEW.state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED'))) IS NOT TRUE
          THEN 'the lifecycle declares no such creation'
        WHEN NEW.fence IS DISTINCT FROM 0
          THEN 'a new row has fence 0'
        WHEN NEW.worker_id IS NOT NULL
          THEN 'a new row has no worker'
        WHEN NEW.ordinal < 0
          THEN 'ordinals count from 0'
        WHEN (NEW.errors IS DISTINCT FROM 0
      OR NEW.losses IS DISTINCT FROM 0
      OR NEW.polls IS DISTINCT FROM 0
      OR NEW.releases IS DISTINCT FROM 0)
          THEN 'a new row has counted nothing'
      END;
  ELSIF TG_OP = 'UPDATE' THEN
    -- The one change that is not a move: a counter put right, to what the journal says.
    IF (NEW.version = OLD.version AND (NEW.errors IS DISTINCT FROM OLD.errors
      OR NEW.losses IS DISTINCT FROM OLD.losses
      OR NEW.polls IS DISTINCT FROM OLD.polls
      OR NEW.releases IS DISTINCT FROM OLD.releases)
       AND to_jsonb(NEW) - '{errors,losses,polls,releases}'::text[] = to_jsonb(OLD) - '{errors,losses,polls,releases}'::text[]
       AND NEW.errors = (SELECT coalesce(sum(CASE WHEN move IN ('retry', 'fail') THEN 1 WHEN move = 'snapshot' THEN (detail::json ->> 'errors')::integer ELSE 0 END), 0) FROM journal WHERE machine = 'job' AND subject_id = NEW.id) + CASE WHEN NEW.move IN ('retry', 'fail') AND NOT EXISTS (SELECT 1 FROM journal WHERE machine = 'job' AND subject_id = NEW.id AND seq = NEW.version) THEN 1 ELSE 0 END
       AND NEW.losses = (SELECT coalesce(sum(CASE WHEN move = 'lose' THEN 1 WHEN move = 'snapshot' THEN (detail::json ->> 'losses')::integer ELSE 0 END), 0) FROM journal WHERE machine = 'job' AND subject_id = NEW.id) + CASE WHEN NEW.move = 'lose' AND NOT EXISTS (SELECT 1 FROM journal WHERE machine = 'job' AND subject_id = NEW.id AND seq = NEW.version) THEN 1 ELSE 0 END
       AND NEW.polls = (SELECT coalesce(sum(CASE WHEN move = 'later' THEN 1 WHEN move = 'snapshot' THEN (detail::json ->> 'polls')::integer ELSE 0 END), 0) FROM journal WHERE machine = 'job' AND subject_id = NEW.id) + CASE WHEN NEW.move = 'later' AND NOT EXISTS (SELECT 1 FROM journal WHERE machine = 'job' AND subject_id = NEW.id AND seq = NEW.version) THEN 1 ELSE 0 END
       AND NEW.releases = (SELECT coalesce(sum(CASE WHEN move = 'release' THEN 1 WHEN move = 'snapshot' THEN (detail::json ->> 'releases')::integer ELSE 0 END), 0) FROM journal WHERE machine = 'job' AND subject_id = NEW.id) + CASE WHEN NEW.move = 'release' AND NOT EXISTS (SELECT 1 FROM journal WHERE machine = 'job' AND subject_id = NEW.id AND seq = NEW.version) THEN 1 ELSE 0 END) THEN
      RETURN NULL;
    END IF;
    subject := OLD.id;
    reason :=
      CASE
        WHEN NEW.version IS DISTINCT FROM OLD.version + 1
          THEN 'every change is a move: SET move = ..., version = version + 1'
        WHEN (CASE NEW.move
        WHEN 'claim' THEN OLD.state = 'QUEUED' AND NEW.state = 'RUNNING'
        WHEN 'succeed' THEN OLD.state = 'RUNNING' AND NEW.state = 'SUCCEEDED'
        WHEN 'submit' THEN OLD.state = 'CREATED' AND NEW.state IN ('GATED', 'WAITING', 'READY', 'QUEUED')
        WHEN 'open' THEN OLD.state = 'GATED' AND NEW.state IN ('WAITING', 'READY', 'QUEUED')
        WHEN 'wake' THEN OLD.state = 'WAITING' AND NEW.state IN ('READY', 'QUEUED')
        WHEN 'due' THEN OLD.state = 'RETRYING' AND NEW.state IN ('READY', 'QUEUED')
        WHEN 'dispatch' THEN OLD.state = 'READY' AND NEW.state = 'QUEUED'
        WHEN 'undispatch' THEN OLD.state = 'QUEUED' AND NEW.state = 'READY'
        WHEN 'note' THEN OLD.state = 'RUNNING' AND NEW.state = OLD.state
        WHEN 'fail' THEN OLD.state = 'RUNNING' AND NEW.state = 'FAILED'
        WHEN 'retry' THEN OLD.state = 'RUNNING' AND NEW.state = 'RETRYING'
        WHEN 'later' THEN OLD.state = 'RUNNING' AND NEW.state = 'WAITING'
        WHEN 'release' THEN OLD.state = 'RUNNING' AND NEW.state IN ('RETRYING', 'WAITING')
        WHEN 'lose' THEN OLD.state = 'RUNNING' AND NEW.state IN ('RETRYING', 'FAILED')
        WHEN 'expire' THEN OLD.state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED', 'RUNNING', 'RETRYING') AND NEW.state = 'FAILED'
        WHEN 'reject' THEN OLD.state IN ('WAITING', 'READY', 'QUEUED', 'RETRYING') AND NEW.state = 'FAILED'
        WHEN 'erase' THEN OLD.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND NEW.state = OLD.state
        WHEN 'cancel' THEN OLD.state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED', 'RUNNING', 'RETRYING') AND NEW.state = 'CANCELLED'
        ELSE false END) IS NOT TRUE
          THEN 'this move is not declared from this state to that one'
        WHEN TG_NAME = 'job_a_refuse_fixed' AND (NEW.id IS DISTINCT FROM OLD.id
      OR NEW.tenant IS DISTINCT FROM OLD.tenant
      OR NEW.kind IS DISTINCT FROM OLD.kind
      OR NEW.kind_version IS DISTINCT FROM OLD.kind_version
      OR NEW.queue IS DISTINCT FROM OLD.queue
      OR NEW.created_at IS DISTINCT FROM OLD.created_at
      OR NEW.codec IS DISTINCT FROM OLD.codec
      OR NEW.retries IS DISTINCT FROM OLD.retries
      OR NEW.recoveries IS DISTINCT FROM OLD.recoveries
      OR NEW.poll_limit IS DISTINCT FROM OLD.poll_limit
      OR NEW.poison_limit IS DISTINCT FROM OLD.poison_limit
      OR NEW.timeout_us IS DISTINCT FROM OLD.timeout_us
      OR NEW.deadline_at IS DISTINCT FROM OLD.deadline_at
      OR NEW.start_by IS DISTINCT FROM OLD.start_by
      OR NEW.policy IS DISTINCT FROM OLD.policy
      OR NEW.unique_key IS DISTINCT FROM OLD.unique_key
      OR NEW.limit_key IS DISTINCT FROM OLD.limit_key
      OR NEW.units IS DISTINCT FROM OLD.units
      OR NEW.tags IS DISTINCT FROM OLD.tags
      OR NEW.parent_id IS DISTINCT FROM OLD.parent_id
      OR NEW.rerun_of IS DISTINCT FROM OLD.rerun_of
      OR NEW.origin_id IS DISTINCT FROM OLD.origin_id
      OR NEW.run_id IS DISTINCT FROM OLD.run_id
      OR NEW.step IS DISTINCT FROM OLD.step
      OR NEW.ordinal IS DISTINCT FROM OLD.ordinal)
          THEN 'these never change: id, tenant, kind, kind_version, queue, created_at, codec, retries, recoveries, poll_limit, poison_limit, timeout_us, deadline_at, start_by, policy, unique_key, limit_key, units, tags, parent_id, rerun_of, origin_id, run_id, step, ordinal'
        WHEN TG_NAME = 'job_a_refuse_fixed' AND (NEW.move IS DISTINCT FROM 'erase' AND (NEW.payload IS DISTINCT FROM OLD.payload))
          THEN 'the payload is fixed'
        WHEN CASE WHEN NEW.state = 'RUNNING' THEN coalesce(NEW.worker_id, '') = '' ELSE NEW.worker_id IS NOT NULL END
          THEN 'RUNNING needs a worker_id and no other state may have one'
        WHEN NEW.worker_id <> OLD.worker_id
          THEN 'a running job keeps its worker'
        WHEN NEW.fence IS DISTINCT FROM OLD.fence + CASE WHEN NEW.move = 'claim' THEN 1 ELSE 0 END
          THEN 'the fence grows by one with every claim and by nothing else'
        WHEN (((NEW.errors IS DISTINCT FROM OLD.errors) AND NEW.errors IS DISTINCT FROM OLD.errors + CASE WHEN NEW.move IN ('retry', 'fail') THEN 1 ELSE 0 END)
      OR ((NEW.losses IS DISTINCT FROM OLD.losses) AND NEW.losses IS DISTINCT FROM OLD.losses + CASE WHEN NEW.move = 'lose' THEN 1 ELSE 0 END)
      OR ((NEW.polls IS DISTINCT FROM OLD.polls) AND NEW.polls IS DISTINCT FROM OLD.polls + CASE WHEN NEW.move = 'later' THEN 1 ELSE 0 END)
      OR ((NEW.releases IS DISTINCT FROM OLD.releases) AND NEW.releases IS DISTINCT FROM OLD.releases + CASE WHEN NEW.move = 'release' THEN 1 ELSE 0 END))
          THEN 'errors, losses, polls, releases are counted by the moves alone'
        WHEN (NEW.move = 'erase' AND (((NEW.payload IS NOT NULL AND (NEW.payload IS DISTINCT FROM OLD.payload))
      OR (NEW.result IS NOT NULL AND (NEW.result IS DISTINCT FROM OLD.result))
      OR (NEW.error IS NOT NULL AND (NEW.error IS DISTINCT FROM OLD.error))) OR (NEW.id IS DISTINCT FROM OLD.id
      OR NEW.tenant IS DISTINCT FROM OLD.tenant
      OR NEW.kind IS DISTINCT FROM OLD.kind
      OR NEW.kind_version IS DISTINCT FROM OLD.kind_version
      OR NEW.queue IS DISTINCT FROM OLD.queue
      OR NEW.priority IS DISTINCT FROM OLD.priority
      OR NEW.state IS DISTINCT FROM OLD.state
      OR NEW.fence IS DISTINCT FROM OLD.fence
      OR NEW.due_at IS DISTINCT FROM OLD.due_at
      OR NEW.created_at IS DISTINCT FROM OLD.created_at
      OR NEW.started_at IS DISTINCT FROM OLD.started_at
      OR NEW.finished_at IS DISTINCT FROM OLD.finished_at
      OR NEW.deadline_at IS DISTINCT FROM OLD.deadline_at
      OR NEW.phase IS DISTINCT FROM OLD.phase
      OR NEW.cause IS DISTINCT FROM OLD.cause
      OR NEW.policy IS DISTINCT FROM OLD.policy
      OR NEW.codec IS DISTINCT FROM OLD.codec
      OR NEW.tags IS DISTINCT FROM OLD.tags
      OR NEW.unique_key IS DISTINCT FROM OLD.unique_key
      OR NEW.trace IS DISTINCT FROM OLD.trace
      OR NEW.channel IS DISTINCT FROM OLD.channel
      OR NEW.parent_id IS DISTINCT FROM OLD.parent_id
      OR NEW.rerun_of IS DISTINCT FROM OLD.rerun_of
      OR NEW.worker_id IS DISTINCT FROM OLD.worker_id
      OR NEW.queued_seq IS DISTINCT FROM OLD.queued_seq
      OR NEW.start_by IS DISTINCT FROM OLD.start_by
      OR NEW.errors IS DISTINCT FROM OLD.errors
      OR NEW.losses IS DISTINCT FROM OLD.losses
      OR NEW.polls IS DISTINCT FROM OLD.polls
      OR NEW.releases IS DISTINCT FROM OLD.releases
      OR NEW.retries IS DISTINCT FROM OLD.retries
      OR NEW.recoveries IS DISTINCT FROM OLD.recoveries
      OR NEW.poll_limit IS DISTINCT FROM OLD.poll_limit
      OR NEW.poison_limit IS DISTINCT FROM OLD.poison_limit
      OR NEW.timeout_us IS DISTINCT FROM OLD.timeout_us
      OR NEW.cancel_reason IS DISTINCT FROM OLD.cancel_reason
      OR NEW.unfit IS DISTINCT FROM OLD.unfit
      OR NEW.error_type IS DISTINCT FROM OLD.error_type
      OR NEW.error_code IS DISTINCT FROM OLD.error_code
      OR NEW.fingerprint IS DISTINCT FROM OLD.fingerprint
      OR NEW.limit_key IS DISTINCT FROM OLD.limit_key
      OR NEW.origin_id IS DISTINCT FROM OLD.origin_id
      OR NEW.run_id IS DISTINCT FROM OLD.run_id
      OR NEW.step IS DISTINCT FROM OLD.step
      OR NEW.ordinal IS DISTINCT FROM OLD.ordinal)))
          THEN 'erase sets payload, result, error to NULL and touches nothing else'
        WHEN NEW.move = 'erase' AND NOT has_table_privilege(session_user, to_regclass('retention')::oid, 'update')
          THEN 'to erase takes the rights of an admin'
        WHEN NEW.move IN ('expire', 'reject') AND NOT has_column_privilege(session_user, to_regclass('job')::oid, 'worker_id', 'update')
          THEN 'this move takes the rights of a worker'
      END;
    IF reason IS NULL THEN
      -- A move by hand that did not count itself is counted here.
      IF ((NEW.move IN ('retry', 'fail') AND NEW.errors = OLD.errors)
      OR (NEW.move = 'lose' AND NEW.losses = OLD.losses)
      OR (NEW.move = 'later' AND NEW.polls = OLD.polls)
      OR (NEW.move = 'release' AND NEW.releases = OLD.releases)) THEN
        UPDATE job
           SET errors = OLD.errors + CASE WHEN NEW.move IN ('retry', 'fail') THEN 1 ELSE 0 END,
               losses = OLD.losses + CASE WHEN NEW.move = 'lose' THEN 1 ELSE 0 END,
               polls = OLD.polls + CASE WHEN NEW.move = 'later' THEN 1 ELSE 0 END,
               releases = OLD.releases + CASE WHEN NEW.move = 'release' THEN 1 ELSE 0 END
         WHERE id = NEW.id AND version = NEW.version;
      END IF;
      RETURN NULL;
    END IF;
    reason := format('%s (%s: %s -> %s)', reason, NEW.move, OLD.state, NEW.state);
  ELSE
    subject := OLD.id;
    reason := 'only a final job may be deleted; this one is ' || OLD.state;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'MP001',
    MESSAGE = format('milepost: job %s: %s', subject, reason),
    HINT = 'milepost machine job shows every legal move';
END $$;

-- A row trigger's WHEN is evaluated in place: a usual row costs no function call. AFTER, because
-- the mere presence of a BEFORE UPDATE row trigger locks each row once more, at 7 us a row.
CREATE TRIGGER job_a_refuse_insert AFTER INSERT ON job FOR EACH ROW
  WHEN ((NEW.version IS DISTINCT FROM 1
      OR ((NEW.move = 'create' AND NEW.state IN ('CREATED', 'GATED', 'WAITING', 'READY', 'QUEUED'))) IS NOT TRUE
      OR NEW.fence IS DISTINCT FROM 0
      OR NEW.worker_id IS NOT NULL
      OR NEW.ordinal < 0
      OR (NEW.errors IS DISTINCT FROM 0
      OR NEW.losses IS DISTINCT FROM 0
      OR NEW.polls IS DISTINCT FROM 0
      OR NEW.releases IS DISTINCT FROM 0)))
  EXECUTE FUNCTION milepost_refuse_job();

CREATE TRIGGER job_a_refuse_change AFTER UPDATE ON job FOR EACH ROW
  WHEN ((NEW.version IS DISTINCT FROM OLD.version + 1
      OR (NEW.move || ' ' || OLD.state || ' ' || NEW.state = ANY ('{claim QUEUED RUNNING, succeed RUNNING SUCCEEDED, open GATED QUEUED, wake WAITING QUEUED, due RETRYING QUEUED, dispatch READY QUEUED, undispatch QUEUED READY, note RUNNING RUNNING}'::text[])) IS NOT TRUE
      OR CASE WHEN NEW.state = 'RUNNING' THEN coalesce(NEW.worker_id, '') = '' ELSE NEW.worker_id IS NOT NULL END
      OR NEW.worker_id <> OLD.worker_id
      OR NEW.fence IS DISTINCT FROM OLD.fence + CASE WHEN NEW.move = 'claim' THEN 1 ELSE 0 END))
  EXECUTE FUNCTION milepost_refuse_job();

CREATE TRIGGER job_a_refuse_count
  AFTER UPDATE OF errors, losses, polls, releases ON job FOR EACH ROW
  WHEN (NEW.move <> ALL ('{retry, fail, lose, later, release}') AND (NEW.errors IS DISTINCT FROM OLD.errors
      OR NEW.losses IS DISTINCT FROM OLD.losses
      OR NEW.polls IS DISTINCT FROM OLD.polls
      OR NEW.releases IS DISTINCT FROM OLD.releases))
  EXECUTE FUNCTION milepost_refuse_job();

CREATE TRIGGER job_a_refuse_fixed
  AFTER UPDATE OF id, tenant, kind, kind_version, queue, created_at, codec, retries, recoveries, poll_limit, poison_limit, timeout_us, deadline_at, start_by, policy, unique_key, limit_key, units, tags, parent_id, rerun_of, origin_id, run_id, step, ordinal, payload ON job FOR EACH ROW
  WHEN (((NEW.id IS DISTINCT FROM OLD.id
      OR NEW.tenant IS DISTINCT FROM OLD.tenant
      OR NEW.kind IS DISTINCT FROM OLD.kind
      OR NEW.kind_version IS DISTINCT FROM OLD.kind_version
      OR NEW.queue IS DISTINCT FROM OLD.queue
      OR NEW.created_at IS DISTINCT FROM OLD.created_at
      OR NEW.codec IS DISTINCT FROM OLD.codec
      OR NEW.retries IS DISTINCT FROM OLD.retries
      OR NEW.recoveries IS DISTINCT FROM OLD.recoveries
      OR NEW.poll_limit IS DISTINCT FROM OLD.poll_limit
      OR NEW.poison_limit IS DISTINCT FROM OLD.poison_limit
      OR NEW.timeout_us IS DISTINCT FROM OLD.timeout_us
      OR NEW.deadline_at IS DISTINCT FROM OLD.deadline_at
      OR NEW.start_by IS DISTINCT FROM OLD.start_by
      OR NEW.policy IS DISTINCT FROM OLD.policy
      OR NEW.unique_key IS DISTINCT FROM OLD.unique_key
      OR NEW.limit_key IS DISTINCT FROM OLD.limit_key
      OR NEW.units IS DISTINCT FROM OLD.units
      OR NEW.tags IS DISTINCT FROM OLD.tags
      OR NEW.parent_id IS DISTINCT FROM OLD.parent_id
      OR NEW.rerun_of IS DISTINCT FROM OLD.rerun_of
      OR NEW.origin_id IS DISTINCT FROM OLD.origin_id
      OR NEW.run_id IS DISTINCT FROM OLD.run_id
      OR NEW.step IS DISTINCT FROM OLD.step
      OR NEW.ordinal IS DISTINCT FROM OLD.ordinal)
      OR (NEW.move IS DISTINCT FROM 'erase' AND (NEW.payload IS DISTINCT FROM OLD.payload))))
  EXECUTE FUNCTION milepost_refuse_job();

CREATE TRIGGER job_a_refuse_delete AFTER DELETE ON job FOR EACH ROW
  WHEN (NOT (OLD.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')))
  EXECUTE FUNCTION milepost_refuse_job();

CREATE TRIGGER job_a_refuse_truncate BEFORE TRUNCATE ON job FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_refuse_hand();

CREATE TRIGGER job_journal_insert AFTER INSERT ON job
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_journal_insert();

CREATE TRIGGER job_journal_move AFTER UPDATE ON job
  REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_journal_move();
-- end rendered: job
