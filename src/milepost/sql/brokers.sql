-- What brokers say of the messages that wait on them, and how the hints of queues stand.

-- name: broker_ask
-- Takes the turn to ask a broker, if nobody did lately; no row back means that somebody did.
-- postgres
INSERT INTO broker_report (side, name, broker, address, at) VALUES (:side, :name, :broker, :address, {now})
ON CONFLICT (side, name) DO UPDATE
   SET broker = excluded.broker, address = excluded.address, at = excluded.at
 WHERE broker_report.at <= {now} - :every_us::bigint{micros}
    OR (broker_report.broker, broker_report.address) <> (excluded.broker, excluded.address)
RETURNING name
-- sqlite
INSERT INTO broker_report (side, name, broker, address, at) VALUES (:side, :name, :broker, :address, {now})
ON CONFLICT (side, name) DO UPDATE
   SET broker = excluded.broker, address = excluded.address, at = excluded.at
 WHERE broker_report.at <= {now} - :every_us
    OR (broker_report.broker, broker_report.address) <> (excluded.broker, excluded.address)
RETURNING name

-- name: broker_answered
UPDATE broker_report
   SET reached_at = {now}, error = NULL, waiting = :waiting, in_flight = :in_flight,
       redelivered = :redelivered, dead = :dead
 WHERE side = :side AND name = :name

-- name: broker_silent
UPDATE broker_report SET error = :error WHERE side = :side AND name = :name

-- name: broker_reports
-- postgres
SELECT side, name, broker, address, (extract(epoch FROM {now} - at) * 1000000)::bigint,
       (extract(epoch FROM {now} - reached_at) * 1000000)::bigint, error, waiting, in_flight, redelivered, dead
  FROM broker_report ORDER BY side, name
-- sqlite
SELECT side, name, broker, address, {now} - at, {now} - reached_at, error, waiting, in_flight, redelivered,
       dead
  FROM broker_report ORDER BY side, name

-- name: broker_hints
-- How the hints of each queue stand: a bounded number of each is there.
-- postgres
SELECT queue, count(*) FILTER (WHERE told_at IS NULL), count(*) FILTER (WHERE told_at IS NOT NULL),
       coalesce(max(tellings), 0), (extract(epoch FROM {now} - min(created_at)) * 1000000)::bigint,
       (extract(epoch FROM min(due_at) - {now}) * 1000000)::bigint, max(error)
  FROM hint GROUP BY queue
-- sqlite
SELECT queue, count(*) FILTER (WHERE told_at IS NULL), count(*) FILTER (WHERE told_at IS NOT NULL),
       coalesce(max(tellings), 0), {now} - min(created_at), min(due_at) - {now}, max(error)
  FROM hint GROUP BY queue

-- name: broker_hint
-- The hint of a job, if there is one of its version.
-- postgres
SELECT tellings, (extract(epoch FROM {now} - told_at) * 1000000)::bigint,
       (extract(epoch FROM due_at - {now}) * 1000000)::bigint, error
  FROM hint WHERE job_id = :id::uuid AND version = :version
-- sqlite
SELECT tellings, {now} - told_at, due_at - {now}, error
  FROM hint WHERE job_id = :id AND version = :version

-- name: queue_transports
SELECT name, transport FROM queue WHERE transport <> 'store' ORDER BY name
