-- Locked, then looked at again: a heartbeat that came first wins. FOR UPDATE waits for a claim.
WITH dead AS MATERIALIZED (
  SELECT id FROM worker
   WHERE state <> 'STOPPED' AND lease_until <= {now}
   ORDER BY id
   LIMIT :most
     FOR UPDATE SKIP LOCKED
)
UPDATE worker SET state = 'STOPPED', move = 'bury'
  FROM dead
 WHERE worker.id = dead.id AND worker.lease_until <= {now}
RETURNING worker.id
