-- Following the journal.

-- name: events_after
-- postgres
-- What :mark sees and :base did not, whatever the order in which transactions began; after :key.
SELECT jsonb_build_array(j.at, j.subject_id, j.machine, j.seq)::text,
       j.machine, {text:j.subject_id}, j.seq, j.move, j.from_state, j.to_state, j.at, j.actor, j.fence,
       coalesce(job.kind, run.kind), coalesce(job.queue, run.queue),
       coalesce(job.tenant, run.tenant), {text:job.run_id}, coalesce(job.trace, run.trace),
       step.role, job.ordinal
  FROM journal j
  LEFT JOIN job ON j.machine = 'job' AND job.id = j.subject_id
  LEFT JOIN run ON j.machine = 'run' AND run.id = j.subject_id
  LEFT JOIN step ON step.run_id = job.run_id AND step.number = job.step
 WHERE (j.xid >= pg_snapshot_xmax(:base::text::pg_snapshot)
        OR j.xid = ANY (ARRAY(SELECT pg_snapshot_xip(:base::text::pg_snapshot))))
   AND pg_visible_in_snapshot(j.xid, :mark::text::pg_snapshot)
   -- No move: it stands for old ones, which every follower has heard of.
   AND j.move <> 'snapshot'
   AND (:key::text = ''
        OR (j.at, j.subject_id, j.machine, j.seq)
           > ((nullif(:key::text, '')::jsonb ->> 0)::timestamptz,
              (nullif(:key::text, '')::jsonb ->> 1)::uuid,
              nullif(:key::text, '')::jsonb ->> 2,
              (nullif(:key::text, '')::jsonb ->> 3)::integer))
 ORDER BY j.at, j.subject_id, j.machine, j.seq
 LIMIT :most
-- sqlite
SELECT CAST(f.place AS TEXT),
       j.machine, {text:j.subject_id}, j.seq, j.move, j.from_state, j.to_state, j.at, j.actor, j.fence,
       coalesce(job.kind, run.kind), coalesce(job.queue, run.queue),
       coalesce(job.tenant, run.tenant), {text:job.run_id}, coalesce(job.trace, run.trace),
       step.role, job.ordinal
  FROM feed f
  JOIN journal j ON j.subject_id = f.subject_id AND j.machine = f.machine AND j.seq = f.seq
  LEFT JOIN job ON j.machine = 'job' AND job.id = j.subject_id
  LEFT JOIN run ON j.machine = 'run' AND run.id = j.subject_id
  LEFT JOIN step ON step.run_id = job.run_id AND step.number = job.step
 WHERE f.place > max(CAST(:base AS INTEGER), CAST(:key AS INTEGER)) AND f.place <= CAST(:mark AS INTEGER)
   -- No move: it stands for old ones, which every follower has heard of.
   AND j.move <> 'snapshot'
 ORDER BY f.place
 LIMIT :most

-- name: events_here
-- postgres
SELECT pg_current_snapshot()::text
-- sqlite
SELECT CAST(coalesce(max(place), 0) AS TEXT) FROM feed

-- name: events_lost
-- postgres
-- Entries leave with their subject, or when they are older than anybody may be away. A place that is a number
-- was told when the store was a file (milepost move).
SELECT :base::text NOT LIKE '%:%' OR :key::text IS NULL
-- sqlite
SELECT s.place < since OR s.place > coalesce((SELECT max(place) FROM feed), 0)
    OR s.place + 1 < coalesce((SELECT min(place) FROM feed), 0)
  FROM feed_switch, (SELECT max(CAST(:base AS INTEGER), CAST(:key AS INTEGER)) AS place) s

-- name: events_prune
-- postgres
SELECT 1 WHERE :keep_us::bigint < 0 AND :most::bigint < 0
-- sqlite
-- The newest stays: the next one is to have a number that was never given.
DELETE FROM feed
 WHERE place IN (SELECT place FROM feed
                  WHERE at < {now} - :keep_us AND place < (SELECT max(place) FROM feed)
                  ORDER BY place LIMIT :most)
RETURNING place

-- name: events_rest
-- postgres
SELECT 1 WHERE false
-- sqlite
UPDATE feed_switch SET until = 0 WHERE until > 0 AND until < {now} RETURNING id

-- name: events_want
-- postgres
-- Every entry can be followed at any time.
SELECT :keep_us::bigint
-- sqlite
-- Switched on for followers; what was left out before is not to be missed unnoticed.
UPDATE feed_switch
   SET since = CASE WHEN until = 0 THEN (SELECT coalesce(max(place), 0) FROM feed) ELSE since END,
       until = {now} + :keep_us
 WHERE until < {now} + :keep_us / 2
RETURNING id
