-- Moves of a whole store from a file to a server (`milepost move`). A server that has a row here is what
-- became of a file; a file that has one was moved away, and triggers on its tables refuse every change.
CREATE TABLE store_move (
  id TEXT PRIMARY KEY,
  source TEXT NOT NULL,                      -- addresses, without their passwords
  target TEXT NOT NULL,
  place TEXT NOT NULL,                       -- which database the target is, by whatever address
  actor TEXT NOT NULL,
  begun_at INTEGER NOT NULL,
  finished_at INTEGER                        -- NULL: whether all has arrived only the target knows
) STRICT;
