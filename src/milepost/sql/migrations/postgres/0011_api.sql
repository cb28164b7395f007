-- The HTTP API: tokens, the answers that a repeated request gets again, and the stream of moves.

-- Who may call. The secret was shown once; only its SHA-256 is kept. Revoked ones stay: that there
-- was a token is what closes the door to callers without one.
CREATE TABLE token (
  id text NOT NULL,                          -- the token's public beginning
  name text NOT NULL,                        -- the journal's actor
  hash bytea NOT NULL,
  scopes text NOT NULL,                      -- words with a space between
  tenant text,                               -- NULL: every tenant's
  queues text,                               -- a JSON list; NULL: every queue
  max_priority integer,                      -- of what it creates; NULL: any
  kinds text,                                -- a JSON list of what it creates; NULL: every kind
  requests boolean NOT NULL DEFAULT true,    -- whether it sends HTTP requests
  rate double precision,                     -- calls a second; NULL: the server's own
  created_at timestamptz NOT NULL,
  expires_at timestamptz,
  revoked_at timestamptz,
  CONSTRAINT token_pkey PRIMARY KEY (id)
);
CREATE UNIQUE INDEX token_name ON token (name) WHERE revoked_at IS NULL;

-- One row per Idempotency-Key, written by the transaction that did what was asked.
CREATE TABLE idempotency (
  scope text NOT NULL,                       -- whose key it is: two callers may choose the same
  key text NOT NULL,
  fingerprint text NOT NULL,                 -- of the request that came first
  answer bytea,                              -- NULL only inside that transaction
  created_at timestamptz NOT NULL,
  CONSTRAINT idempotency_pkey PRIMARY KEY (scope, key)
);
CREATE INDEX idempotency_age ON idempotency (created_at);

-- Which transaction wrote an entry: those who follow the journal ask for what has been committed
-- since they last looked. Neither a time nor a number says that, for both are taken before a commit.
ALTER TABLE journal ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX journal_xid ON journal (xid);

-- The pages: the key that servers sign sessions with if none is configured, searches that have a
-- name, and how the last check of the whole store ended.
CREATE TABLE server_key (
  id integer PRIMARY KEY DEFAULT 1 CHECK (id = 1),
  value bytea NOT NULL
);

CREATE TABLE saved_view (
  name text NOT NULL,
  query text NOT NULL,
  actor text,
  saved_at timestamptz NOT NULL,
  CONSTRAINT saved_view_pkey PRIMARY KEY (name)
);

CREATE TABLE checked (
  name text NOT NULL,                        -- verify, doctor
  clean boolean NOT NULL,
  summary text NOT NULL,
  at timestamptz NOT NULL,
  CONSTRAINT checked_pkey PRIMARY KEY (name)
);
