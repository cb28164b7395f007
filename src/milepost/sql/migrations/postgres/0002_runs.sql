-- Runs: containers of jobs, with steps, their counters, and outputs that wait to be published.

CREATE TABLE run (
  id uuid PRIMARY KEY,
  fence bigint NOT NULL DEFAULT 0,           -- a container holds no lease (H-43): always zero
  created_at timestamptz NOT NULL DEFAULT milepost_now(),
  due_at timestamptz,
  started_at timestamptz,
  finished_at timestamptz,
  deadline_at timestamptz,
  watermark_before timestamptz,
  watermark_after timestamptz,
  version integer NOT NULL DEFAULT 1,
  kind_version integer NOT NULL DEFAULT 1,
  current_step integer NOT NULL DEFAULT 0,
  parent_id uuid,                            -- the batch that this one is an item of (H-68)
  rerun_of uuid,
  resumes uuid,
  ordinal integer,                           -- its place among the parent's items
  depth smallint,                            -- in a tree of batches: 0 at the root; else NULL
  priority smallint NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 9),
  state text NOT NULL,
  move text NOT NULL,
  actor text,
  detail text,
  tenant text NOT NULL DEFAULT '',
  kind text NOT NULL,
  queue text NOT NULL DEFAULT 'default',
  phase text,
  cause text,
  ending text,                               -- STOPPING: how it will end
  mode text,
  codec text NOT NULL DEFAULT 'json',
  unique_key text,
  params_key text,                           -- the same parameters have the same; for reuse
  trace text,
  channel text,
  policy text,
  error text,
  tags jsonb,
  payload bytea,
  report bytea
);
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
  run_id uuid NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  number integer NOT NULL,
  name text NOT NULL,
  role text NOT NULL DEFAULT 'work',         -- work, partition, consolidate, reduce
  kind text NOT NULL,
  kind_version integer NOT NULL DEFAULT 1,
  queue text NOT NULL DEFAULT 'default',
  gated boolean NOT NULL DEFAULT false,
  opened boolean NOT NULL DEFAULT true,      -- the gate: flipped once, never back
  poll_us bigint,
  policy text,
  filled_at timestamptz,                     -- when a held run was last added to (H-107)
  channel text,                              -- told of its jobs' ends, and when its gate opens
  PRIMARY KEY (run_id, number)
);

-- Large steps spread over several slots so that settlers do not queue for one row.
CREATE TABLE step_count (
  run_id uuid NOT NULL,
  step integer NOT NULL,
  slot smallint NOT NULL DEFAULT 0,
  open bigint NOT NULL DEFAULT 0,
  succeeded bigint NOT NULL DEFAULT 0,
  failed bigint NOT NULL DEFAULT 0,
  cancelled bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (run_id, step, slot),
  FOREIGN KEY (run_id, step) REFERENCES step (run_id, number) ON DELETE CASCADE
) WITH (fillfactor = 50);

-- Outputs of a running job: invisible until the transaction that ends it writes a publication.
CREATE TABLE staged (
  producer_id uuid NOT NULL,
  fence bigint NOT NULL,
  seq bigint NOT NULL,
  step integer NOT NULL,
  codec text NOT NULL DEFAULT 'json',
  payload bytea,
  limit_key text,                            -- which limit the job will be under
  PRIMARY KEY (producer_id, fence, seq)
);

-- Results of a job of the last step that gave several: its reducer reads them one by one. They count
-- once their job SUCCEEDED, under the fence that it has then.
CREATE TABLE job_output (
  job_id uuid NOT NULL,
  fence bigint NOT NULL,
  seq bigint NOT NULL,
  payload bytea NOT NULL,
  PRIMARY KEY (job_id, fence, seq)
);

CREATE TABLE publication (
  producer_id uuid PRIMARY KEY,
  fence bigint NOT NULL,
  run_id uuid NOT NULL REFERENCES run (id) ON DELETE CASCADE,
  total bigint NOT NULL,
  published bigint NOT NULL DEFAULT 0,       -- outputs below this seq are jobs by now
  withdrawn boolean NOT NULL DEFAULT false
);
CREATE INDEX publication_open ON publication (run_id) WHERE published < total AND NOT withdrawn;

-- What a running job says of itself. Not on `job`: any UPDATE there is a move.
CREATE TABLE progress (
  job_id uuid PRIMARY KEY,
  fence bigint NOT NULL,
  fraction double precision,
  message text,
  next_offset bigint NOT NULL DEFAULT 0,
  records bigint NOT NULL DEFAULT 0,
  position bytea,
  created_at timestamptz NOT NULL DEFAULT milepost_now(),
  updated_at timestamptz NOT NULL DEFAULT milepost_now()
) WITH (fillfactor = 50);

-- What keeps a run whole is not only its own row. A counter of less than nothing would let it end over
-- open jobs, a step that came later change what others wait for, and a gate stand open too early. The
-- rights of a worker are those of whoever may write leases.
CREATE FUNCTION milepost_refuse_stage() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  reason text;
BEGIN
  IF TG_TABLE_NAME = 'step_count' THEN
    reason := 'the counters of a step begin at nothing';
  ELSIF TG_OP = 'UPDATE' AND OLD.opened THEN
    reason := 'a gate is opened once and never closed again';
  ELSIF has_column_privilege(session_user, to_regclass('job')::oid, 'worker_id', 'update') THEN
    RETURN NULL;
  ELSIF TG_OP = 'UPDATE' THEN
    IF NEW.number <= (SELECT current_step FROM run WHERE id = NEW.run_id) THEN
      RETURN NULL;
    END IF;
    reason := 'a gate opens when its run has come to it';
  ELSE
    IF EXISTS (SELECT 1 FROM journal WHERE subject_id = NEW.run_id AND machine = 'run' AND seq = 1
                  AND xid = pg_current_xact_id()) THEN
      RETURN NULL;
    END IF;
    reason := 'its steps are made with it, by the same transaction';
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'MP002', MESSAGE = format('milepost: run %s: %s', NEW.run_id, reason);
END $$;

CREATE TRIGGER step_refuse_late AFTER INSERT ON step FOR EACH ROW
  EXECUTE FUNCTION milepost_refuse_stage();
CREATE TRIGGER step_refuse_gate AFTER UPDATE OF opened ON step FOR EACH ROW
  WHEN (NEW.opened <> OLD.opened)
  EXECUTE FUNCTION milepost_refuse_stage();
CREATE TRIGGER step_count_refuse AFTER INSERT ON step_count FOR EACH ROW
  WHEN (NEW.open <> 0 OR NEW.succeeded <> 0 OR NEW.failed <> 0 OR NEW.cancelled <> 0)
  EXECUTE FUNCTION milepost_refuse_stage();

-- Outputs are taken back by a run that stops, and go on in the one that resumes it: a run that went on
-- without them would end well and lack their work.
CREATE FUNCTION milepost_refuse_publication() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.run_id = OLD.run_id AND NEW.withdrawn AND EXISTS (
       SELECT 1 FROM run WHERE id = NEW.run_id
          AND state IN ('STOPPING', 'SUCCEEDED', 'FAILED', 'CANCELLED'))
     OR OLD.withdrawn AND NOT NEW.withdrawn AND EXISTS (
       SELECT 1 FROM run WHERE id = NEW.run_id AND resumes = OLD.run_id AND state = 'CREATED') THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'MP002',
    MESSAGE = format('milepost: run %s: outputs are withdrawn when it stops, and go on in the run that '
                     'resumes it', OLD.run_id);
END $$;

CREATE TRIGGER publication_refuse AFTER UPDATE OF run_id, withdrawn ON publication FOR EACH ROW
  WHEN (NEW.run_id <> OLD.run_id OR NEW.withdrawn <> OLD.withdrawn)
  EXECUTE FUNCTION milepost_refuse_publication();

-- begin rendered: run
-- Called for unusual rows only: says which rule a bad one broke.
CREATE FUNCTION milepost_refuse_run() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  reason text;
  subject uuid;
BEGIN
  -- First: what is compared below is cast by whoever made the table's types.
  IF (TG_RELID = to_regclass('run')) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a table that this function serves', TG_RELID::regclass;
  END IF;
  IF TG_OP = 'INSERT' THEN
    subject := NEW.id;
    reason :=
      CASE
        WHEN NEW.version IS DISTINCT FROM 1
          THEN 'a new row has version 1'
        WHEN ((NEW.move = 'create' AND NEW.state IN ('CREATED', 'QUEUED'))) IS NOT TRUE
          THEN 'the lifecycle declares no such creation'
        WHEN NEW.fence IS DISTINCT FROM 0
          THEN 'a new row has fence 0'
        WHEN NEW.report IS NOT NULL
          THEN 'a new row has no report'
      END;
  ELSIF TG_OP = 'UPDATE' THEN
    subject := OLD.id;
    reason :=
      CASE
        WHEN NEW.version IS DISTINCT FROM OLD.version + 1
          THEN 'every change is a move: SET move = ..., version = version + 1'
        WHEN (CASE NEW.move
        WHEN 'seal' THEN OLD.state = 'CREATED' AND NEW.state = 'QUEUED'
        WHEN 'begin' THEN OLD.state = 'QUEUED' AND NEW.state = 'RUNNING'
        WHEN 'advance' THEN OLD.state = 'RUNNING' AND NEW.state = OLD.state
        WHEN 'finalize' THEN OLD.state IN ('QUEUED', 'RUNNING') AND NEW.state = 'FINALIZING'
        WHEN 'finish' THEN OLD.state IN ('QUEUED', 'RUNNING', 'FINALIZING') AND NEW.state = 'SUCCEEDED'
        WHEN 'stop' THEN OLD.state IN ('CREATED', 'QUEUED', 'RUNNING', 'FINALIZING') AND NEW.state = 'STOPPING'
        WHEN 'fail' THEN OLD.state IN ('CREATED', 'QUEUED', 'RUNNING', 'STOPPING', 'FINALIZING') AND NEW.state = 'FAILED'
        WHEN 'cancel' THEN OLD.state IN ('CREATED', 'QUEUED', 'RUNNING', 'STOPPING', 'FINALIZING') AND NEW.state = 'CANCELLED'
        ELSE false END) IS NOT TRUE
          THEN 'this move is not declared from this state to that one'
        WHEN TG_NAME = 'run_a_refuse_fixed' AND (NEW.id IS DISTINCT FROM OLD.id
      OR NEW.tenant IS DISTINCT FROM OLD.tenant
      OR NEW.kind IS DISTINCT FROM OLD.kind
      OR NEW.kind_version IS DISTINCT FROM OLD.kind_version
      OR NEW.created_at IS DISTINCT FROM OLD.created_at
      OR NEW.codec IS DISTINCT FROM OLD.codec
      OR NEW.policy IS DISTINCT FROM OLD.policy
      OR NEW.deadline_at IS DISTINCT FROM OLD.deadline_at
      OR NEW.unique_key IS DISTINCT FROM OLD.unique_key
      OR NEW.params_key IS DISTINCT FROM OLD.params_key
      OR NEW.parent_id IS DISTINCT FROM OLD.parent_id
      OR NEW.rerun_of IS DISTINCT FROM OLD.rerun_of
      OR NEW.resumes IS DISTINCT FROM OLD.resumes
      OR NEW.ordinal IS DISTINCT FROM OLD.ordinal
      OR NEW.depth IS DISTINCT FROM OLD.depth)
          THEN 'these never change: id, tenant, kind, kind_version, created_at, codec, policy, deadline_at, unique_key, params_key, parent_id, rerun_of, resumes, ordinal, depth'
        WHEN TG_NAME = 'run_a_refuse_fixed' AND (NEW.move IS DISTINCT FROM 'erase' AND (NEW.payload IS DISTINCT FROM OLD.payload))
          THEN 'the payload is fixed'
        WHEN NEW.fence IS DISTINCT FROM OLD.fence
          THEN 'only jobs are leased'
        WHEN NEW.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND (SELECT sum(open) FROM step_count WHERE run_id = NEW.id AND true) > 0 AND NOT has_column_privilege(session_user, to_regclass('job')::oid, 'worker_id', 'update')
          THEN 'to end it over open jobs takes the rights of a worker'
        WHEN (NEW.report IS DISTINCT FROM OLD.report) AND NEW.report IS DISTINCT FROM (SELECT job.result FROM job JOIN step ON step.run_id = job.run_id AND step.number = job.step WHERE job.run_id = NEW.id AND step.role = 'reduce' AND job.state = 'SUCCEEDED') AND NOT has_column_privilege(session_user, to_regclass('job')::oid, 'worker_id', 'update')
          THEN 'its report is the result of its reducer'
        WHEN NOT has_column_privilege(session_user, to_regclass('job')::oid, 'worker_id', 'update') AND (NEW.current_step > OLD.current_step AND (SELECT sum(open) FROM step_count WHERE run_id = NEW.id AND step < NEW.current_step) > 0 OR NEW.state = 'FINALIZING' AND (SELECT sum(open) FROM step_count WHERE run_id = NEW.id AND true) > 0 OR NEW.state IN ('FINALIZING', 'SUCCEEDED') AND EXISTS (SELECT 1 FROM publication WHERE run_id = NEW.id AND published < total AND NOT withdrawn) OR NEW.state = 'SUCCEEDED' AND EXISTS (SELECT 1 FROM step WHERE run_id = NEW.id AND role = 'reduce' AND NOT EXISTS (SELECT 1 FROM job WHERE job.run_id = NEW.id AND job.step = step.number AND job.state = 'SUCCEEDED')))
          THEN 'to move it on over open work takes the rights of a worker'
      END;
    IF reason IS NULL THEN
      RETURN NULL;
    END IF;
    reason := format('%s (%s: %s -> %s)', reason, NEW.move, OLD.state, NEW.state);
  ELSE
    subject := OLD.id;
    reason := 'only a final run may be deleted; this one is ' || OLD.state;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'MP001',
    MESSAGE = format('milepost: run %s: %s', subject, reason),
    HINT = 'milepost machine run shows every legal move';
END $$;

-- A row trigger's WHEN is evaluated in place: a usual row costs no function call. AFTER, because
-- the mere presence of a BEFORE UPDATE row trigger locks each row once more, at 7 us a row.
CREATE TRIGGER run_a_refuse_insert AFTER INSERT ON run FOR EACH ROW
  WHEN ((NEW.version IS DISTINCT FROM 1
      OR ((NEW.move = 'create' AND NEW.state IN ('CREATED', 'QUEUED'))) IS NOT TRUE
      OR NEW.fence IS DISTINCT FROM 0
      OR NEW.report IS NOT NULL))
  EXECUTE FUNCTION milepost_refuse_run();

CREATE TRIGGER run_a_refuse_change AFTER UPDATE ON run FOR EACH ROW
  WHEN ((NEW.version IS DISTINCT FROM OLD.version + 1
      OR (NEW.move || ' ' || OLD.state || ' ' || NEW.state = ANY ('{}'::text[])) IS NOT TRUE
      OR NEW.fence IS DISTINCT FROM OLD.fence))
  EXECUTE FUNCTION milepost_refuse_run();

CREATE TRIGGER run_a_refuse_fixed
  AFTER UPDATE OF id, tenant, kind, kind_version, created_at, codec, policy, deadline_at, unique_key, params_key, parent_id, rerun_of, resumes, ordinal, depth, payload ON run FOR EACH ROW
  WHEN (((NEW.id IS DISTINCT FROM OLD.id
      OR NEW.tenant IS DISTINCT FROM OLD.tenant
      OR NEW.kind IS DISTINCT FROM OLD.kind
      OR NEW.kind_version IS DISTINCT FROM OLD.kind_version
      OR NEW.created_at IS DISTINCT FROM OLD.created_at
      OR NEW.codec IS DISTINCT FROM OLD.codec
      OR NEW.policy IS DISTINCT FROM OLD.policy
      OR NEW.deadline_at IS DISTINCT FROM OLD.deadline_at
      OR NEW.unique_key IS DISTINCT FROM OLD.unique_key
      OR NEW.params_key IS DISTINCT FROM OLD.params_key
      OR NEW.parent_id IS DISTINCT FROM OLD.parent_id
      OR NEW.rerun_of IS DISTINCT FROM OLD.rerun_of
      OR NEW.resumes IS DISTINCT FROM OLD.resumes
      OR NEW.ordinal IS DISTINCT FROM OLD.ordinal
      OR NEW.depth IS DISTINCT FROM OLD.depth)
      OR (NEW.move IS DISTINCT FROM 'erase' AND (NEW.payload IS DISTINCT FROM OLD.payload))))
  EXECUTE FUNCTION milepost_refuse_run();

CREATE TRIGGER run_a_refuse_delete AFTER DELETE ON run FOR EACH ROW
  WHEN (NOT (OLD.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')))
  EXECUTE FUNCTION milepost_refuse_run();

CREATE TRIGGER run_a_refuse_truncate BEFORE TRUNCATE ON run FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_refuse_hand();

CREATE TRIGGER run_journal_insert AFTER INSERT ON run
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_journal_insert();

CREATE TRIGGER run_journal_move AFTER UPDATE ON run
  REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_journal_move();
-- end rendered: run
