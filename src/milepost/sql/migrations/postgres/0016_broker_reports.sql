-- What a broker last said of the messages that wait on it for a queue or an inbound, told by a worker that
-- reaches it: who looks at the store need not.
CREATE TABLE broker_report (
  side text NOT NULL CHECK (side IN ('queue', 'inbound')),
  name text NOT NULL,
  broker text NOT NULL,                      -- its kind: nats, rabbitmq, …
  address text NOT NULL,                     -- without passwords
  at timestamptz NOT NULL,                   -- when it was last asked
  reached_at timestamptz,                    -- when it last answered
  error text,                                -- why it did not
  waiting bigint,
  in_flight bigint,
  redelivered bigint,
  dead bigint,
  PRIMARY KEY (side, name)
);
