-- Moves of a whole store from a file to a server (`milepost move`). A server that has a row here is what
-- became of a file; a file that has one was moved away, and triggers on its tables refuse every change.
CREATE TABLE store_move (
  id text PRIMARY KEY,
  source text NOT NULL,                      -- addresses, without their passwords
  target text NOT NULL,
  place text NOT NULL,                       -- which database the target is, by whatever address
  actor text NOT NULL,
  begun_at timestamptz NOT NULL,
  finished_at timestamptz                    -- NULL: whether all has arrived only the target knows
);
