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
