-- Hosts that requests go to: who sends to one, and who waits for a place there. A row counts only where its job
-- is RUNNING with the same fence, so that nothing has to be given back: a place is free when its lease is over.
CREATE TABLE host_place (
  job_id TEXT PRIMARY KEY,                   -- no reference: what is left behind counts for nothing, and is pruned
  host TEXT NOT NULL,
  fence INTEGER NOT NULL,
  sends INTEGER NOT NULL,                    -- 0: it waits for a place
  since INTEGER NOT NULL,
  due_at INTEGER                             -- when one that waits asks again
) STRICT, WITHOUT ROWID;
CREATE INDEX host_place_sends ON host_place (host) WHERE sends;
CREATE INDEX host_place_waits ON host_place (host, since) WHERE NOT sends;
