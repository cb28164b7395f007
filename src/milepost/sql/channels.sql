-- Channels that messages go to.

-- name: channel_declare
INSERT INTO channel (name, kind, target, tenant, seen_at)
VALUES (:name, :kind, :target, :tenant, {now})
ON CONFLICT (name) DO UPDATE
   SET kind = excluded.kind, target = excluded.target, tenant = excluded.tenant, seen_at = excluded.seen_at

-- name: channel_enter
-- A channel that no program declares is one all the same once it has a message.
INSERT INTO channel (name)
SELECT CAST(:name AS text) WHERE EXISTS (SELECT 1 FROM outbox WHERE channel = CAST(:name AS text))
ON CONFLICT (name) DO NOTHING

-- name: channel_list
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
       c.stopped_at, coalesce(c.seen_at + :vanished_us{micros} >= {now}, false)
  FROM named LEFT JOIN channel c ON c.name = named.name
 ORDER BY named.name

-- name: channel_lately
-- How many of a channel's newest messages were delivered within a time, and when the last one was.
-- postgres
SELECT g.name,
       (SELECT count(*) FROM (SELECT delivered_at FROM outbox WHERE channel = g.name ORDER BY n DESC LIMIT :look) AS newest
         WHERE delivered_at > {now} - :span_us{micros}),
       (SELECT max(delivered_at)
          FROM (SELECT delivered_at FROM outbox WHERE channel = g.name ORDER BY n DESC LIMIT :look) AS newest)
  FROM unnest(:name::text[]) AS g (name)
-- sqlite
SELECT g.value,
       (SELECT count(*) FROM (SELECT delivered_at FROM outbox WHERE channel = g.value ORDER BY n DESC LIMIT :look)
         WHERE delivered_at > {now} - :span_us),
       (SELECT max(delivered_at) FROM (SELECT delivered_at FROM outbox WHERE channel = g.value ORDER BY n DESC LIMIT :look))
  FROM json_each(:name) AS g

-- name: channel_lock
-- Places are given one after the other, by the holder of the row: nobody sees a later one first.
-- postgres
SELECT places FROM channel WHERE name = :name
   FOR UPDATE
-- sqlite
SELECT places FROM channel WHERE name = :name

-- name: channel_places
UPDATE channel SET places = :places WHERE name = :name

-- name: channel_start
UPDATE channel SET stopped_at = NULL, stopped_by = NULL, reason = NULL
 WHERE name = :name AND stopped_at IS NOT NULL
RETURNING name

-- name: channel_stop
UPDATE channel SET stopped_at = {now}, stopped_by = :actor, reason = :reason
 WHERE name = :name AND stopped_at IS NULL
RETURNING name

-- name: channel_tenant
-- Whose a channel is; no row, or NULL, while nobody declared it.
SELECT tenant FROM channel WHERE name = :name
