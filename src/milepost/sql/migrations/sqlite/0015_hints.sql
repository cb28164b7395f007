-- Queues on a broker: what their workers are told. The job stays in its row.

-- In the order of claims: the first are handed to the broker first.
CREATE INDEX job_ready ON job (queue, priority DESC, queued_seq) WHERE state = 'READY';

-- A hint that is on its way to a broker, or on it: written with the move that queues its job, removed by
-- the claim. One whose job is elsewhere, or has another version by now, is dead and is swept.
CREATE TABLE hint (
  job_id TEXT PRIMARY KEY,
  queue TEXT NOT NULL,
  version INTEGER NOT NULL,                  -- of the job when it was queued
  fence INTEGER NOT NULL DEFAULT 1,          -- grows with each telling: only the newest may record its result
  tellings INTEGER NOT NULL DEFAULT 0,       -- that the broker confirmed
  created_at INTEGER NOT NULL,
  due_at INTEGER NOT NULL,                   -- when it is told again
  told_at INTEGER,                           -- when the broker last confirmed it
  error TEXT                                 -- why the broker did not take it
) STRICT;
CREATE INDEX hint_queue ON hint (queue);

-- The store's own name, in the topics of its queues: two stores may share a broker. Whoever needs it first
-- gives it.
CREATE TABLE store_name (
  id INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
  name TEXT NOT NULL
) STRICT;
