-- What a broker last said of the messages that wait on it for a queue or an inbound, told by a worker that
-- reaches it: who looks at the store need not.
CREATE TABLE broker_report (
  side TEXT NOT NULL CHECK (side IN ('queue', 'inbound')),
  name TEXT NOT NULL,
  broker TEXT NOT NULL,                      -- its kind: nats, rabbitmq, …
  address TEXT NOT NULL,                     -- without passwords
  at INTEGER NOT NULL,                       -- when it was last asked
  reached_at INTEGER,                        -- when it last answered
  error TEXT,                                -- why it did not
  waiting INTEGER,
  in_flight INTEGER,
  redelivered INTEGER,
  dead INTEGER,
  PRIMARY KEY (side, name)
) STRICT;
