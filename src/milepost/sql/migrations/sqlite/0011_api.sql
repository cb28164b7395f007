-- The HTTP API: tokens, the answers that a repeated request gets again, and the stream of moves.

-- Who may call. The secret was shown once; only its SHA-256 is kept. Revoked ones stay: that there
-- was a token is what closes the door to callers without one.
CREATE TABLE token (
  id TEXT NOT NULL,                          -- the token's public beginning
  name TEXT NOT NULL,                        -- the journal's actor
  hash BLOB NOT NULL,
  scopes TEXT NOT NULL,                      -- words with a space between
  tenant TEXT,                               -- NULL: every tenant's
  queues TEXT,                               -- a JSON list; NULL: every queue
  max_priority INTEGER,                      -- of what it creates; NULL: any
  kinds TEXT,                                -- a JSON list of what it creates; NULL: every kind
  requests INTEGER NOT NULL DEFAULT 1,       -- whether it sends HTTP requests
  rate REAL,                                 -- calls a second; NULL: the server's own
  created_at INTEGER NOT NULL,
  expires_at INTEGER,
  revoked_at INTEGER,
  CONSTRAINT token_pkey PRIMARY KEY (id)
) STRICT;
CREATE UNIQUE INDEX token_name ON token (name) WHERE revoked_at IS NULL;

-- One row per Idempotency-Key, written by the transaction that did what was asked.
CREATE TABLE idempotency (
  scope TEXT NOT NULL,                       -- whose key it is: two callers may choose the same
  key TEXT NOT NULL,
  fingerprint TEXT NOT NULL,                 -- of the request that came first
  answer BLOB,                               -- NULL only inside that transaction
  created_at INTEGER NOT NULL,
  CONSTRAINT idempotency_pkey PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_age ON idempotency (created_at);
