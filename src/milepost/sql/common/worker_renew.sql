-- One row for all its jobs. No row back means that it was buried: its jobs are lost.
UPDATE worker
   SET lease_until = {now} + :lease_us{micros}, lease_us = :lease_us, heartbeat_at = {now},
       slots = coalesce(:slots, slots)
 WHERE id = :id AND state <> 'STOPPED'
RETURNING state
