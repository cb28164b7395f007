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

-- The pages: the key that servers sign sessions with if none is configured, searches that have a
-- name, and how the last check of the whole store ended.
CREATE TABLE server_key (
  id INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
  value BLOB NOT NULL
) STRICT;

CREATE TABLE saved_view (
  name TEXT NOT NULL,
  query TEXT NOT NULL,
  actor TEXT,
  saved_at INTEGER NOT NULL,
  CONSTRAINT saved_view_pkey PRIMARY KEY (name)
) STRICT, WITHOUT ROWID;

CREATE TABLE checked (
  name TEXT NOT NULL,                        -- verify, doctor
  clean INTEGER NOT NULL,
  summary TEXT NOT NULL,
  at INTEGER NOT NULL,
  CONSTRAINT checked_pkey PRIMARY KEY (name)
) STRICT, WITHOUT ROWID;
