-- Whoever holds it keeps it; anybody may take it once its time is over. Economy, not safety.
INSERT INTO election (name, holder, lease_until) VALUES (:name, :holder, {now} + :lease_us{micros})
ON CONFLICT (name) DO UPDATE
   SET holder = excluded.holder, lease_until = excluded.lease_until
 WHERE election.holder = excluded.holder OR election.lease_until <= {now}
RETURNING holder
