-- Those that were declared and those that have a message, found by hops from one name to the next.
WITH RECURSIVE hop(name) AS (
  SELECT min(channel) FROM outbox
   UNION ALL
  SELECT (SELECT min(channel) FROM outbox WHERE channel > hop.name) FROM hop WHERE hop.name IS NOT NULL
), named AS (
  SELECT name FROM hop WHERE name IS NOT NULL UNION SELECT name FROM channel
)
SELECT named.name, coalesce(c.kind, 'pull'), c.target, c.tenant, c.stopped_by, c.reason,
       (SELECT count(*) FROM outbox
         WHERE channel = named.name AND delivered_at IS NULL AND dead_at IS NULL),
       (SELECT count(*) FROM outbox WHERE channel = named.name AND dead_at IS NOT NULL),
       c.stopped_at, c.seen_at, {now}
  FROM named LEFT JOIN channel c ON c.name = named.name
 ORDER BY named.name
