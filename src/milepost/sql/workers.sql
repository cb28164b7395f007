-- Workers: leases, heartbeats, elections.

-- name: worker_register
INSERT INTO worker (id, state, move, host, pid, program, queues, kinds, slots, started_at,
                    heartbeat_at, lease_until, lease_us)
SELECT :id, 'STARTUP', 'boot', :host, :pid, :program, :queues, :kinds, :slots, {now}, {now},
       {now} + :lease_us{micros}, :lease_us
 WHERE NOT EXISTS (SELECT 1 FROM worker WHERE id = :id)
RETURNING state

-- name: worker_move
UPDATE worker SET state = :state, move = :move, slots = coalesce(:slots, slots)
 WHERE id = :id AND state <> 'STOPPED'
RETURNING state

-- name: worker_renew
-- One row for all its jobs. No row back means that it was buried: its jobs are lost.
UPDATE worker
   SET lease_until = {now} + :lease_us{micros}, lease_us = :lease_us, heartbeat_at = {now},
       slots = coalesce(:slots, slots)
 WHERE id = :id AND state <> 'STOPPED'
RETURNING state

-- name: worker_cut
-- A lease further ahead than its own length was given before the clock went back: it is cut. The
-- living renew it, the dead are buried one lease later.
UPDATE worker SET lease_until = {now} + lease_us{micros}
 WHERE state <> 'STOPPED' AND lease_until > {now} + lease_us{micros}

-- name: worker_bury
-- postgres
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
-- sqlite
UPDATE worker SET state = 'STOPPED', move = 'bury'
 WHERE id IN (SELECT id FROM worker WHERE state <> 'STOPPED' AND lease_until <= {now}
               ORDER BY id LIMIT :most)
RETURNING id

-- name: worker_exit
-- Keeps how a worker's process ended, as its supervisor saw it: recovery tells it to the jobs that were lost.
UPDATE worker SET exit_code = :exit_code
 WHERE host = :host AND pid = :pid AND exit_code IS NULL AND state <> 'STOPPED'

-- name: worker_prune
DELETE FROM worker
 WHERE state = 'STOPPED' AND heartbeat_at < {now} - :keep_us{micros}
   AND NOT EXISTS (SELECT 1 FROM job WHERE job.worker_id = worker.id AND job.state = 'RUNNING')

-- name: worker_list
-- A worker that rests has looked for jobs, with a slot free, and found none. Those that have stopped are last: none of
-- the others is left out, however many they are.
-- postgres
SELECT id, state, move, host, pid, program, queues, kinds, slots, started_at, heartbeat_at,
       lease_until, extract(epoch FROM lease_until - {now})
  FROM worker
 WHERE :free_beside::text IS NULL
    OR (state IN {resting} AND id <> :free_beside AND lease_until > {now})
 ORDER BY CASE state WHEN 'STOPPED' THEN 1 ELSE 0 END, started_at DESC, id
 LIMIT :most
-- sqlite
SELECT id, state, move, host, pid, program, queues, kinds, slots, started_at, heartbeat_at,
       lease_until, (lease_until - {now}) / 1000000.0
  FROM worker
 WHERE :free_beside IS NULL
    OR (state IN {resting} AND id <> :free_beside AND lease_until > {now})
 ORDER BY CASE state WHEN 'STOPPED' THEN 1 ELSE 0 END, started_at DESC, id
 LIMIT :most

-- name: worker_counts
-- One that died is STOPPED when its lease is over: when the last one died, nobody is left to move its row.
SELECT CASE WHEN lease_until > {now} THEN state ELSE 'STOPPED' END, count(*)
  FROM worker GROUP BY 1 ORDER BY 1

-- name: election_hold
-- The holder keeps it; anybody may take it once its time is over. Economy, not safety.
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
