-- Compares and sets: who gets a row back logs in; the others wait for what that gives.
UPDATE source_budget SET login_until = {now} + :lease_us::bigint{micros}
 WHERE name = :name AND logins = :seen AND coalesce(login_until, {now}) <= {now}
RETURNING login_until
