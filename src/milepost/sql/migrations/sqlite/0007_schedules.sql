-- Schedules: one row each, written by the programs that declare them. A slot is fired by the
-- transaction that moves `next_at` past it and creates its jobs, so it is fired once.

CREATE TABLE schedule (
  name TEXT PRIMARY KEY NOT NULL,
  kind TEXT NOT NULL,
  cron TEXT NOT NULL,
  zone TEXT NOT NULL,
  missed TEXT NOT NULL CHECK (missed IN ('skip', 'last', 'all')),
  template TEXT NOT NULL,                    -- JSON: what each of its jobs is created with
  payload BLOB,
  paused INTEGER NOT NULL DEFAULT 0,
  paused_at INTEGER,
  paused_by TEXT,
  declared_at INTEGER NOT NULL,
  seen_at INTEGER NOT NULL,                  -- when a program that declares it last ran
  next_at INTEGER NOT NULL,                  -- the first slot that nobody has decided on
  last_at INTEGER,                           -- the last slot that was fired
  last_job_id TEXT,
  fired INTEGER NOT NULL DEFAULT 0
) STRICT;
