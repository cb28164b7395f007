-- Sources that several workers share: a pause that they asked for, and their login.

-- name: budget_block
-- Keeps everybody from calling a source that asked for a pause.
-- postgres
INSERT INTO source_budget AS b (name, blocked_until)
VALUES (:name, {now} + :wait_us::bigint{micros})
ON CONFLICT (name) DO UPDATE SET blocked_until = greatest(b.blocked_until, excluded.blocked_until)
-- sqlite
INSERT INTO source_budget AS b (name, blocked_until)
VALUES (:name, {now} + :wait_us)
ON CONFLICT (name) DO UPDATE SET blocked_until = max(b.blocked_until, excluded.blocked_until)

-- name: budget_standing
-- For how long a source does not want to be called, and the rate in force.
-- postgres
SELECT (SELECT greatest(0, (extract(epoch FROM blocked_until - {now}) * 1000000)::bigint)
          FROM source_budget WHERE name = :name),
       rule.rate, rule.per_us, rule.burst
  FROM (SELECT 1) AS one
  LEFT JOIN limit_rule AS rule ON rule.scope = 'source' AND rule.name = :name AND rule.rate IS NOT NULL
-- sqlite
SELECT (SELECT max(0, blocked_until - {now}) FROM source_budget WHERE name = :name),
       rule.rate, rule.per_us, rule.burst
  FROM (SELECT 1) AS one
  LEFT JOIN limit_rule AS rule ON rule.scope = 'source' AND rule.name = :name AND rule.rate IS NOT NULL

-- name: login_enter
INSERT INTO source_budget (name, blocked_until)
VALUES (:name, {now})
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
