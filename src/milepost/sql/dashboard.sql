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
                               WHERE {unusual} AND state IN {unqueued}
                               LIMIT :most) AS others),
       (SELECT count(*) FROM run WHERE state NOT IN {final}),
       (SELECT count(*) FROM pipeline),
       (SELECT count(*) FROM queue),
       (SELECT count(*) FROM worker WHERE state <> 'STOPPED'),
       (SELECT count(*) FROM schedule),
       -- As `channel_list` names them: a channel that is pulled need not be declared.
       (WITH RECURSIVE hop (name) AS (
          SELECT min(channel) FROM outbox
          UNION ALL
          SELECT (SELECT min(channel) FROM outbox WHERE channel > hop.name) FROM hop WHERE hop.name IS NOT NULL)
        SELECT count(*) FROM (SELECT name FROM hop WHERE name IS NOT NULL UNION SELECT name FROM channel) AS named),
       -- Errors that were first seen within a day: each is a step along the index of failures.
       (WITH RECURSIVE named (fingerprint, n) AS (
          SELECT min(fingerprint), 1 FROM failure
          UNION ALL
          SELECT (SELECT min(fingerprint) FROM failure WHERE fingerprint > named.fingerprint), n + 1
            FROM named
           WHERE named.fingerprint IS NOT NULL AND n < 1000)
        SELECT count(*) FROM named
         WHERE (SELECT min(at) FROM failure WHERE failure.fingerprint = named.fingerprint)
               > {now} - :day_us{micros})

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

-- name: job_situation
-- What decides on a job besides its row and the workers: the clock, its queue, its run, by when it must start, and
-- whether its queue is limited.
SELECT {columns:situation} FROM job WHERE id = :id

-- name: job_view_moves
-- The newest moves of a job, and how often each older one was made, without a time. Details are left
-- out behind so many bytes of newer ones.
WITH newest AS (
SELECT seq, move, from_state, to_state, fence, at, actor, detail, {db_user} AS db_user,
       sum(coalesce(length(detail), 0)) OVER (ORDER BY seq DESC) - coalesce(length(detail), 0) AS ahead
  FROM (SELECT * FROM journal WHERE subject_id = :id AND machine = 'job'
         ORDER BY seq DESC LIMIT :most) AS moves
)
SELECT seq, move, from_state, to_state, fence, at, actor,
       CASE WHEN ahead < :most_bytes OR move = 'snapshot' THEN detail END, db_user, 1
  FROM newest
UNION ALL
SELECT 0, move, from_state, to_state, 0, NULL, NULL, NULL, NULL, count(*)
  FROM journal
 WHERE subject_id = :id AND machine = 'job' AND seq < (SELECT min(seq) FROM newest)
 GROUP BY move, from_state, to_state
 ORDER BY 1

-- name: job_view_kept
-- What is kept beside a job, in one answer: the lines it logged, its steps, what it used, its message
-- to its channel, and how many jobs failed last as it did.
-- postgres
SELECT 'log', ''::text, 0::float8, NULL::timestamptz, content, NULL::bytea FROM job_log WHERE job_id = :id
UNION ALL
SELECT * FROM (
  SELECT 'step', name, coalesce(length(result), 0)::float8, at, fence::text,
         CASE WHEN length(result) <= :most_bytes THEN result END
    FROM durable_step WHERE job_id = :id ORDER BY at, name LIMIT :most) AS steps
UNION ALL
SELECT 'used', name, sum(amount), NULL, NULL, NULL FROM usage WHERE job_id = :id GROUP BY name
UNION ALL
SELECT 'message', channel, attempts::float8, coalesce(delivered_at, dead_at, due_at),
       CASE WHEN delivered_at IS NOT NULL THEN 'delivered' WHEN dead_at IS NOT NULL THEN 'dead' ELSE 'waiting' END, NULL
  FROM outbox WHERE id = ANY(:message_id::text[])
UNION ALL
SELECT 'same', '', count(*)::float8, NULL, NULL, NULL
  FROM (SELECT 1 FROM job WHERE fingerprint = :fingerprint::text LIMIT :look) AS alike
-- sqlite
SELECT 'log', '', 0, NULL, content, NULL FROM job_log WHERE job_id = :id
UNION ALL
SELECT * FROM (
  SELECT 'step', name, coalesce(length(result), 0), at, cast(fence AS TEXT),
         CASE WHEN length(result) <= :most_bytes THEN result END
    FROM durable_step WHERE job_id = :id ORDER BY at, name LIMIT :most) AS steps
UNION ALL
SELECT 'used', name, sum(amount), NULL, NULL, NULL FROM usage WHERE job_id = :id GROUP BY name
UNION ALL
SELECT 'message', channel, attempts, coalesce(delivered_at, dead_at, due_at),
       CASE WHEN delivered_at IS NOT NULL THEN 'delivered' WHEN dead_at IS NOT NULL THEN 'dead' ELSE 'waiting' END, NULL
  FROM outbox WHERE id IN (SELECT value FROM json_each(:message_id))
UNION ALL
SELECT 'same', '', count(*), NULL, NULL, NULL
  FROM (SELECT 1 FROM job WHERE fingerprint = :fingerprint LIMIT :look) AS alike
