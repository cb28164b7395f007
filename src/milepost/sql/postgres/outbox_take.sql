-- Takes what is due, with a new fence and until a time; never one whose line has an earlier message.
-- For the planner: what comes first in a line is looked up, for a join would read all that waits; and
-- `% 1 = 0`, always true, makes it expect few rows and look each up by its id.
WITH picked AS MATERIALIZED (
  SELECT o.id, o.fence FROM outbox o
   WHERE o.channel = :channel AND o.delivered_at IS NULL AND o.dead_at IS NULL AND o.due_at <= {now}
     AND (:tenant::text = '*' OR o.tenant = :tenant::text)
     AND o.n = (SELECT e.n FROM outbox e
                 WHERE e.channel = o.channel AND e.line = o.line
                   AND e.delivered_at IS NULL AND e.dead_at IS NULL
                 ORDER BY e.n LIMIT 1)
     AND NOT EXISTS (SELECT 1 FROM channel WHERE name = :channel AND stopped_at IS NOT NULL)
   ORDER BY o.due_at, o.n
   LIMIT :most
     FOR UPDATE SKIP LOCKED
)
UPDATE outbox SET fence = outbox.fence + 1, due_at = {now} + :lease_us{micros}
  FROM picked
 WHERE outbox.id = picked.id AND picked.fence % 1 = 0
RETURNING outbox.id, outbox.machine, outbox.subject_id::text, outbox.seq, outbox.n, outbox.channel, outbox.tenant, outbox.queue, outbox.kind, outbox.state, outbox.trace, outbox.fence, outbox.attempts, outbox.place, outbox.error, outbox.created_at, outbox.due_at, outbox.delivered_at, outbox.dead_at
