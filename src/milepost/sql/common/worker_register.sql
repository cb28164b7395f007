INSERT INTO worker (id, state, move, host, pid, program, queues, kinds, slots, started_at,
                    heartbeat_at, lease_until)
VALUES (:id, 'STARTUP', 'boot', :host, :pid, :program, :queues, :kinds, :slots, {now}, {now},
        {now} + :lease_us{micros})
