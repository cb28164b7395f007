-- Takes what is due, with a new fence and until a time; never one whose line has an earlier message.
WITH picked AS MATERIALIZED (
  SELECT o.id FROM outbox o
   WHERE o.channel = :channel AND o.delivered_at IS NULL AND o.dead_at IS NULL AND o.due_at <= {now}
     AND NOT EXISTS (SELECT 1 FROM outbox e
                      WHERE e.channel = o.channel AND e.line = o.line AND e.n < o.n
                        AND e.delivered_at IS NULL AND e.dead_at IS NULL)
     AND NOT EXISTS (SELECT 1 FROM channel WHERE name = :channel AND stopped_at IS NOT NULL)
   ORDER BY o.due_at, o.n
   LIMIT :most
     FOR UPDATE SKIP LOCKED
)
UPDATE outbox SET fence = fence + 1, due_at = {now} + :lease_us{micros}
  FROM picked
 WHERE outbox.id = picked.id
RETURNING outbox.id, outbox.machine, outbox.subject_id::text, outbox.seq, outbox.n, outbox.channel, outbox.tenant, outbox.queue, outbox.kind, outbox.state, outbox.trace, outbox.fence, outbox.attempts, outbox.place, outbox.error, outbox.created_at, outbox.due_at, outbox.delivered_at, outbox.dead_at
