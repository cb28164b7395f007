-- Sources that several workers share: their rate, and their login.

-- name: budget_block
-- Keeps everybody from calling a source that asked for a pause.
-- postgres
INSERT INTO source_budget AS b (name, free_at, blocked_until)
VALUES (:name, {now} + :wait_us::bigint{micros}, {now} + :wait_us::bigint{micros})
ON CONFLICT (name) DO UPDATE
  SET free_at = greatest(b.free_at, excluded.free_at),
      blocked_until = greatest(b.blocked_until, excluded.blocked_until)
-- sqlite
INSERT INTO source_budget AS b (name, free_at, blocked_until)
VALUES (:name, {now} + :wait_us, {now} + :wait_us)
ON CONFLICT (name) DO UPDATE
  SET free_at = max(b.free_at, excluded.free_at),
      blocked_until = max(b.blocked_until, excluded.blocked_until)

-- name: budget_blocked
-- postgres
SELECT greatest(0, (extract(epoch FROM blocked_until - {now}) * 1000000)::bigint)
  FROM source_budget WHERE name = :name
-- sqlite
SELECT max(0, blocked_until - {now}) FROM source_budget WHERE name = :name

-- name: budget_take
-- Takes the next free slot of a source; answers with the microseconds until it.
-- postgres
INSERT INTO source_budget AS b (name, free_at, blocked_until)
VALUES (:name, {now} + :every_us::bigint{micros}, {now})
ON CONFLICT (name) DO UPDATE
  SET free_at = greatest(b.free_at, b.blocked_until, {now}) + :every_us::bigint{micros}
RETURNING (extract(epoch FROM free_at - :every_us::bigint{micros} - {now}) * 1000000)::bigint
-- sqlite
INSERT INTO source_budget AS b (name, free_at, blocked_until)
VALUES (:name, {now} + :every_us, {now})
ON CONFLICT (name) DO UPDATE
  SET free_at = max(b.free_at, b.blocked_until, {now}) + :every_us
RETURNING free_at - :every_us - {now}

-- name: login_enter
INSERT INTO source_budget (name, free_at, blocked_until)
VALUES (:name, {now}, {now})
ON CONFLICT (name) DO NOTHING

-- name: login_give
UPDATE source_budget SET logins = logins + 1, session = :session, login_until = NULL
 WHERE name = :name AND logins = :seen
RETURNING logins

-- name: login_leave
-- Who could not log in steps back: the next may try at once. A turn that is another's stays.
-- postgres
UPDATE source_budget SET login_until = NULL
 WHERE name = :name AND login_until = :until::timestamptz
-- sqlite
UPDATE source_budget SET login_until = NULL
 WHERE name = :name AND login_until = :until

-- name: login_read
SELECT logins, session FROM source_budget WHERE name = :name

-- name: login_take
-- Compares and sets: who gets a row back logs in; the others wait for what that gives.
-- postgres
UPDATE source_budget SET login_until = {now} + :lease_us::bigint{micros}
 WHERE name = :name AND logins = :seen AND coalesce(login_until, {now}) <= {now}
RETURNING login_until
-- sqlite
UPDATE source_budget SET login_until = {now} + :lease_us
 WHERE name = :name AND logins = :seen AND coalesce(login_until, {now}) <= {now}
RETURNING login_until
