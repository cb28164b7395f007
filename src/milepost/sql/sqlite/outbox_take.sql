-- Takes what is due, with a new fence and until a time; never one whose line has an earlier message.
UPDATE outbox SET fence = fence + 1, due_at = {now} + :lease_us
 WHERE id IN (
         SELECT o.id FROM outbox o
          WHERE o.channel = :channel AND o.delivered_at IS NULL AND o.dead_at IS NULL AND o.due_at <= {now}
            AND (:tenant = '*' OR o.tenant = :tenant)
            AND NOT EXISTS (SELECT 1 FROM outbox e
                             WHERE e.channel = o.channel AND e.line = o.line AND e.n < o.n
                               AND e.delivered_at IS NULL AND e.dead_at IS NULL)
            AND NOT EXISTS (SELECT 1 FROM channel WHERE name = :channel AND stopped_at IS NOT NULL)
          ORDER BY o.due_at, o.n
          LIMIT :most)
RETURNING id, machine, subject_id, seq, n, channel, tenant, queue, kind, state, trace, fence, attempts, place, error, created_at, due_at, delivered_at, dead_at
