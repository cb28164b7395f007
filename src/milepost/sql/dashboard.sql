-- What the pages keep and count.

-- name: server_key_put
INSERT INTO server_key (id, value) VALUES (1, :value) ON CONFLICT (id) DO NOTHING

-- name: server_key_get
SELECT value FROM server_key

-- name: rail_counts
-- Each count has an index of its own; of open jobs no more than :most are looked at.
SELECT (SELECT count(*) FROM (SELECT 1 FROM job WHERE state = 'QUEUED' LIMIT :most) AS queued)
     + (SELECT count(*) FROM (SELECT 1 FROM job WHERE state = 'RUNNING' LIMIT :most) AS running)
     + (SELECT count(*) FROM (SELECT 1 FROM job
                               WHERE {unusual} AND state <> 'CANCELLED'
                               LIMIT :most) AS others),
       (SELECT count(*) FROM run WHERE state NOT IN {final}),
       (SELECT count(*) FROM pipeline),
       (SELECT count(*) FROM queue),
       (SELECT count(*) FROM worker WHERE state <> 'STOPPED'),
       (SELECT count(*) FROM schedule),
       (SELECT count(*) FROM channel)

-- name: view_list
SELECT name, query, actor, saved_at FROM saved_view ORDER BY name

-- name: view_put
INSERT INTO saved_view (name, query, actor, saved_at) VALUES (:name, :query, :actor, {now})
ON CONFLICT (name) DO UPDATE
   SET query = excluded.query, actor = excluded.actor, saved_at = excluded.saved_at

-- name: view_delete
DELETE FROM saved_view WHERE name = :name RETURNING name

-- name: checked_put
INSERT INTO checked (name, clean, summary, at) VALUES (:name, :clean, :summary, {now})
ON CONFLICT (name) DO UPDATE
   SET clean = excluded.clean, summary = excluded.summary, at = excluded.at

-- name: checked_list
SELECT name, clean, summary, at FROM checked ORDER BY name
