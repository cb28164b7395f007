-- A lease further ahead than its own length was given before the clock went back: it is cut. The
-- living renew it, the dead are buried one lease later.
UPDATE worker SET lease_until = {now} + lease_us{micros}
 WHERE state <> 'STOPPED' AND lease_until > {now} + lease_us{micros}
