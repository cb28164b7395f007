INSERT INTO worker (id, state, move, host, pid, program, queues, kinds, slots, started_at,
                    heartbeat_at, lease_until, lease_us)
SELECT :id, 'STARTUP', 'boot', :host, :pid, :program, :queues, :kinds, :slots, {now}, {now},
       {now} + :lease_us{micros}, :lease_us
 WHERE NOT EXISTS (SELECT 1 FROM worker WHERE id = :id)
RETURNING state
