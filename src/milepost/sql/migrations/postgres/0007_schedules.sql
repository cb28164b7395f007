-- Schedules: one row each, written by the programs that declare them. A slot is fired by the
-- transaction that moves `next_at` past it and creates its jobs, so it is fired once.

CREATE TABLE schedule (
  name text PRIMARY KEY,
  kind text NOT NULL,
  cron text NOT NULL,
  zone text NOT NULL,
  missed text NOT NULL CHECK (missed IN ('skip', 'last', 'all')),
  template text NOT NULL,                    -- JSON: what each of its jobs is created with
  payload bytea,
  paused boolean NOT NULL DEFAULT false,
  paused_at timestamptz,
  paused_by text,
  declared_at timestamptz NOT NULL DEFAULT milepost_now(),
  seen_at timestamptz NOT NULL DEFAULT milepost_now(),  -- when a program that declares it last ran
  next_at timestamptz NOT NULL,              -- the first slot that nobody has decided on
  last_at timestamptz,                       -- the last slot that was fired
  last_job_id uuid,
  fired bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
