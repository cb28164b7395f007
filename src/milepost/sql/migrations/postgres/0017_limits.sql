-- Limits: how many jobs run at once, and how many start in a time. Nothing is stored about a job that a limit
-- keeps waiting: whether it may start is told by the live leases under its key, and by the key's bucket.

-- One row a rule. `scope` says what is counted: jobs of a rule by their key, a queue, a host of requests, a source.
-- What programs declared stands next to what is in force: people may set something else at runtime.
CREATE TABLE limit_rule (
  scope text NOT NULL CHECK (scope IN ('job', 'queue', 'host', 'source')),
  name text NOT NULL,
  most integer CHECK (most >= 0),            -- so many at once; NULL: any number
  rate double precision CHECK (rate > 0),    -- so many units in `per_us`; NULL: any number
  per_us bigint CHECK (per_us > 0),
  burst double precision CHECK (burst > 0),  -- so many at once after a rest
  ordered boolean NOT NULL DEFAULT false,    -- one at a time, in order, retries included
  units text,                                -- what an attempt counts that is settled against its reservation
  declared text,                             -- JSON: the newest declaration
  declared_at timestamptz,
  declared_before text,                      -- JSON: the one that it took the place of
  set_at timestamptz,                        -- when somebody set it otherwise
  set_by text,
  reason text,
  PRIMARY KEY (scope, name),
  CHECK ((rate IS NULL) = (per_us IS NULL) AND (rate IS NULL) = (burst IS NULL))
);

-- When the next unit of a key is free, as GCRA has it: ahead of now by what was taken and not yet earned.
CREATE TABLE bucket (
  scope text NOT NULL,
  key text COLLATE "C" NOT NULL,
  free_at timestamptz NOT NULL,
  PRIMARY KEY (scope, key)
) WITH (fillfactor = 50);
CREATE INDEX bucket_free ON bucket (free_at);

-- Who changed a rule, to what, and why.
CREATE TABLE limit_change (
  n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT milepost_now(),
  scope text NOT NULL,
  name text NOT NULL,
  before text,                               -- JSON: what was in force
  after text,
  actor text,
  reason text,
  db_user text NOT NULL DEFAULT session_user
);
CREATE TRIGGER limit_change_refuse BEFORE UPDATE OR DELETE ON limit_change FOR EACH ROW
  EXECUTE FUNCTION milepost_refuse_hand();
CREATE TRIGGER limit_change_refuse_truncate BEFORE TRUNCATE ON limit_change FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_refuse_hand();

-- Keys are spread over sixteen stripes; a claim takes jobs of those stripes alone that it locks, and nobody waits
-- for a stripe. The schema's name keeps apart the stores of one database.
CREATE FUNCTION milepost_lock_stripes(first integer, most integer) RETURNS text[]
  LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  store integer := hashtext('milepost limits ' || current_schema());
  locked text[] := '{}';
  stripe integer;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'MP003',
      MESSAGE = 'milepost: jobs under a limit are claimed in READ COMMITTED: an older snapshot would '
                'not see the leases that count';
  END IF;
  FOR place IN 0..15 LOOP
    EXIT WHEN cardinality(locked) >= most;
    stripe := (first + place) % 16;
    IF pg_try_advisory_xact_lock(store, stripe) THEN
      locked := locked || to_hex(stripe);
    END IF;
  END LOOP;
  RETURN locked;
END $$;

CREATE FUNCTION milepost_lock_queue(name text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN pg_try_advisory_xact_lock(hashtext('milepost limits ' || current_schema()),
                                   16 + (hashtext(name) & 1073741823));
END $$;

-- The leases under each key, as they stand now that its stripe is locked: later than the snapshot of the statement
-- that asks. Of an ordered key also which job has the turn: none while one is between two attempts.
CREATE FUNCTION milepost_live(keys text[], ordered boolean[], queues text[], priorities smallint[])
  RETURNS TABLE (key text, live bigint, turn bigint) LANGUAGE plpgsql VOLATILE ROWS 100 AS $$
BEGIN
  RETURN QUERY
  SELECT asked.key,
         (SELECT count(*) FROM job WHERE job.limit_key = asked.key AND job.worker_id IS NOT NULL),
         CASE WHEN NOT asked.ordered THEN 0
              WHEN EXISTS (SELECT 1 FROM job
                            WHERE job.limit_key = asked.key AND job.fence > 0
                              AND job.state IN ('WAITING', 'RETRYING'))
              THEN NULL
              ELSE (SELECT job.queued_seq FROM job
                     WHERE job.queue = asked.queue AND job.priority = asked.priority
                       AND job.limit_key = asked.key AND job.state = 'QUEUED'
                     ORDER BY job.limit_key, job.queued_seq
                     LIMIT 1) END
    FROM unnest(keys, ordered, queues, priorities) AS asked (key, ordered, queue, priority);
END $$;

-- The leases in queues that have a limit of their own.
CREATE FUNCTION milepost_live_in(queues text[]) RETURNS TABLE (queue text, live bigint)
  LANGUAGE plpgsql VOLATILE ROWS 10 AS $$
BEGIN
  RETURN QUERY
  SELECT asked.queue, (SELECT count(*) FROM job WHERE job.state = 'RUNNING' AND job.queue = asked.queue)
    FROM unnest(queues) AS asked (queue);
END $$;
