SELECT id, machine, subject_id, seq, n, channel, tenant, queue, kind, state, trace, fence, attempts, place, error, created_at, due_at, delivered_at, dead_at
  FROM outbox WHERE id = :id
