SELECT id, state, move, host, pid, program, queues, kinds, slots, started_at, heartbeat_at,
       lease_until, (lease_until - {now}) / 1000000.0
  FROM worker
 ORDER BY started_at DESC, id
 LIMIT :most
