SELECT id, state, move, host, pid, program, queues, kinds, slots, started_at, heartbeat_at,
       lease_until, extract(epoch FROM lease_until - {now})
  FROM worker
 ORDER BY started_at DESC, id
 LIMIT :most
