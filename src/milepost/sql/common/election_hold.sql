-- Whoever holds it keeps it; anybody may take it once its time is over. Economy, not safety.
-- A lease further ahead than its own length was given before the clock went back: it is cut, and
-- its holder renews it, or it ends one lease later.
INSERT INTO election (name, holder, lease_until, lease_us)
VALUES (:name, :holder, {now} + :lease_us{micros}, :lease_us)
ON CONFLICT (name) DO UPDATE
   SET holder = CASE WHEN election.lease_until <= {now} THEN excluded.holder
                     ELSE election.holder END,
       lease_until = CASE WHEN election.lease_until <= {now} OR election.holder = excluded.holder
                          THEN excluded.lease_until
                          ELSE {now} + election.lease_us{micros} END,
       lease_us = CASE WHEN election.lease_until <= {now} OR election.holder = excluded.holder
                       THEN excluded.lease_us ELSE election.lease_us END
 WHERE election.holder = excluded.holder OR election.lease_until <= {now}
    OR election.lease_until > {now} + election.lease_us{micros}
RETURNING holder
