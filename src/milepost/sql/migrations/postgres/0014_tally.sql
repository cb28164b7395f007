-- What happened when, for charts: moves and durations of jobs, summed up by queue and kind.

-- Sums of a minute, of ten minutes or of an hour: as they age, maintenance moves them from one to the next.
CREATE TABLE tally (
  at timestamptz NOT NULL,                   -- when the span begins
  count bigint NOT NULL,
  sum_us bigint NOT NULL,
  span integer NOT NULL,                     -- in seconds
  bucket smallint NOT NULL,
  queue text NOT NULL,
  kind text NOT NULL,
  name text NOT NULL,
  PRIMARY KEY (span, at, queue, kind, name, bucket)
);

-- The pairs that are counted by name; there is a limit to them, and all others share one.
CREATE TABLE tally_label (
  queue text NOT NULL,
  kind text NOT NULL,
  PRIMARY KEY (queue, kind)
);

-- How many jobs each queue holds, whatever their state, by what is folded already.
CREATE TABLE queue_total (
  queue text PRIMARY KEY,
  count bigint NOT NULL
);

-- How many attempts failed with the same error, by the hour: exactly those that `failure` holds. A row for each
-- statement, and sums of them, as above.
CREATE TABLE failure_delta (
  at timestamptz NOT NULL,                   -- when the hour begins
  count bigint NOT NULL,
  fingerprint text NOT NULL
) WITH (
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0
);
CREATE TABLE failure_hour (
  at timestamptz NOT NULL,
  count bigint NOT NULL,
  fingerprint text NOT NULL,
  PRIMARY KEY (fingerprint, at)
);
INSERT INTO failure_hour (at, count, fingerprint)
SELECT date_bin('1 hour', at, 'epoch'), count(*), fingerprint FROM failure GROUP BY 1, 3;

CREATE FUNCTION milepost_count_failures() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO failure_delta (at, count, fingerprint)
  SELECT date_bin('1 hour', at, 'epoch'), CASE TG_OP WHEN 'DELETE' THEN -count(*) ELSE count(*) END, fingerprint
    FROM changed
   GROUP BY 1, 3;
  RETURN NULL;
END $$;
CREATE TRIGGER failure_count_insert AFTER INSERT ON failure
  REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION milepost_count_failures();
CREATE TRIGGER failure_count_delete AFTER DELETE ON failure
  REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION milepost_count_failures();
