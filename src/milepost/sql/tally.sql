-- Moves and durations of jobs by time, and how many jobs stand where.

-- name: tally_add
-- What a worker has counted since it last said so.
-- postgres
INSERT INTO tally_delta (at, count, sum_us, bucket, name, queue, kind)
SELECT {now}, i.count, i.sum_us, i.bucket, i.name, i.queue, i.kind
  FROM unnest(:name::text[], :bucket::smallint[], :count::bigint[], :sum_us::bigint[],
              :queue::text[], :kind::text[]) AS i (name, bucket, count, sum_us, queue, kind)
-- sqlite
INSERT INTO tally_delta (at, count, sum_us, bucket, name, queue, kind)
SELECT {now}, i.count, i.sum_us, i.bucket, i.name, i.queue, i.kind
  FROM {rows:name bucket count sum_us queue kind} AS i

-- name: tally_created_alike
-- Counts new jobs, in the order of their rowids, where all are of one kind, in one queue and of one minute.
-- postgres
-- A trigger has counted them.
-- sqlite
-- To compare each with the first one takes half as long as to sort them.
INSERT INTO tally_delta (at, count, name, queue, kind)
SELECT first.created_at,
       (SELECT count(*) FROM job WHERE rowid >= first.rowid AND rowid < first.rowid + :most),
       'create', first.queue, first.kind
  FROM job AS first
 WHERE first.rowid = (SELECT min(rowid) FROM job WHERE rowid > (SELECT number FROM tally_mark))
   AND NOT EXISTS (SELECT 1 FROM job AS other
                    WHERE other.rowid > first.rowid AND other.rowid < first.rowid + :most
                      AND (other.queue <> first.queue OR other.kind <> first.kind
                           OR other.created_at >= (first.created_at / 60000000 + 1) * 60000000))
RETURNING count

-- name: tally_created
-- Counts new jobs, in the order of their rowids.
-- postgres
-- A trigger has counted them.
-- sqlite
INSERT INTO tally_delta (at, count, name, queue, kind)
SELECT min(created_at), count(*), 'create', queue, kind
  FROM job
 WHERE rowid >= (SELECT min(rowid) FROM job WHERE rowid > (SELECT number FROM tally_mark))
   AND rowid < (SELECT min(rowid) FROM job WHERE rowid > (SELECT number FROM tally_mark)) + :most
 GROUP BY queue, kind, created_at / 60000000
RETURNING count

-- name: tally_mark_move
-- Remembers the last one of them.
-- postgres
-- A trigger has counted them.
-- sqlite
UPDATE tally_mark
   SET number = last.rowid, job_id = last.id
  FROM job AS last
 WHERE last.rowid = (SELECT max(rowid) FROM job
                      WHERE rowid < (SELECT min(rowid) FROM job
                                      WHERE rowid > (SELECT number FROM tally_mark)) + :most)

-- name: tally_mark_lost
-- Whether rows have got other numbers since.
-- postgres
-- There are no numbers to lose.
-- sqlite
SELECT 1 FROM tally_mark
 WHERE number > 0 AND NOT EXISTS (SELECT 1 FROM job WHERE job.rowid = number AND job.id = job_id)

-- name: tally_mark_last
-- postgres
-- There are no numbers to lose.
-- sqlite
UPDATE tally_mark
   SET number = coalesce((SELECT max(rowid) FROM job), 0),
       job_id = (SELECT id FROM job ORDER BY rowid DESC LIMIT 1)

-- name: queue_total_lock
-- postgres
-- Whoever folds has committed, or adds to what is counted now.
LOCK TABLE queue_total IN EXCLUSIVE MODE
-- sqlite
-- There is one writer.

-- name: queue_total_count
-- Counts all jobs of each queue, less what is still to be folded. The last resort: it reads the whole table.
INSERT INTO queue_total (queue, count)
SELECT queue, sum(n)
  FROM (SELECT queue, count(*) AS n FROM job GROUP BY queue
         UNION ALL
        SELECT queue, 0 FROM queue_total
         UNION ALL
        SELECT queue, CASE name WHEN 'create' THEN -count ELSE count END FROM tally_delta
         WHERE name IN ('create', 'remove')) AS counted
 GROUP BY queue
ON CONFLICT (queue) DO UPDATE SET count = excluded.count

-- name: tally_label_add
-- Names the pairs that are new, as long as there is room.
INSERT INTO tally_label (queue, kind)
SELECT queue, kind
  FROM (SELECT DISTINCT queue, kind FROM tally_delta) AS met
 WHERE NOT EXISTS (SELECT 1 FROM tally_label AS known
                    WHERE known.queue = met.queue AND known.kind = met.kind)
 ORDER BY queue, kind
 LIMIT (SELECT CASE WHEN count(*) > :labels THEN 0 ELSE :labels - count(*) END FROM tally_label)
ON CONFLICT DO NOTHING

-- name: queue_total_fold
-- postgres
-- `tally_fold` does it, in one statement: rows of others may come in between two.
-- sqlite
INSERT INTO queue_total (queue, count)
SELECT queue, sum(CASE name WHEN 'create' THEN count ELSE -count END)
  FROM tally_delta
 WHERE name IN ('create', 'remove')
   AND rowid < (SELECT min(rowid) FROM tally_delta) + :most
 GROUP BY queue
ON CONFLICT (queue) DO UPDATE SET count = queue_total.count + excluded.count

-- name: tally_fold
-- Adds counts to the sums of their minutes: of a queue and a kind, of a kind in any queue (''), and of all jobs
-- ('' and ''). A pair without a name, where there is no room for it, is one of the others.
-- postgres
-- A pair that came up just now waits for the next time. Keys in their order, and SKIP LOCKED: two may do it at once.
WITH gone AS (
  DELETE FROM tally_delta
   WHERE ctid = ANY(ARRAY(
           SELECT ctid FROM tally_delta AS d
            WHERE EXISTS (SELECT 1 FROM tally_label AS l WHERE l.queue = d.queue AND l.kind = d.kind)
               OR (SELECT count(*) FROM tally_label) >= :labels
            LIMIT :most
              FOR UPDATE SKIP LOCKED))
  RETURNING at, count, sum_us, bucket, name, queue, kind
), totalled AS (
  INSERT INTO queue_total (queue, count)
  SELECT queue, sum(CASE name WHEN 'create' THEN count ELSE -count END)
    FROM gone
   WHERE name IN ('create', 'remove')
   GROUP BY queue
   ORDER BY queue
  ON CONFLICT (queue) DO UPDATE SET count = queue_total.count + excluded.count
), named AS MATERIALIZED (
  SELECT date_bin(interval '1 minute', gone.at, 'epoch'::timestamptz) AS at,
         coalesce(l.queue, :others) AS queue, coalesce(l.kind, :others) AS kind, gone.name, gone.bucket,
         sum(gone.count) AS count, sum(gone.sum_us) AS sum_us
    FROM gone LEFT JOIN tally_label AS l ON l.queue = gone.queue AND l.kind = gone.kind
   WHERE gone.name <> 'remove'
   GROUP BY 1, 2, 3, 4, 5
), added AS (
  INSERT INTO tally (span, at, queue, kind, name, bucket, count, sum_us)
  SELECT 60, at, coalesce(queue, ''), coalesce(kind, ''), name, bucket, sum(count), sum(sum_us)
    FROM named
   GROUP BY GROUPING SETS ((at, queue, kind, name, bucket), (at, kind, name, bucket), (at, name, bucket))
   ORDER BY 2, 3, 4, 5, 6
  ON CONFLICT (span, at, queue, kind, name, bucket)
  DO UPDATE SET count = tally.count + excluded.count, sum_us = tally.sum_us + excluded.sum_us
)
SELECT count(*) FROM gone
-- sqlite
WITH named AS MATERIALIZED (
  SELECT gone.at / 60000000 * 60000000 AS at, coalesce(l.queue, :others) AS queue, coalesce(l.kind, :others) AS kind,
         gone.name, gone.bucket, sum(gone.count) AS count, sum(gone.sum_us) AS sum_us
    FROM tally_delta AS gone LEFT JOIN tally_label AS l ON l.queue = gone.queue AND l.kind = gone.kind
   WHERE gone.name <> 'remove' AND gone.rowid < (SELECT min(rowid) FROM tally_delta) + :most AND :labels > 0
   GROUP BY 1, 2, 3, 4, 5
), level (n) AS (VALUES (1), (2), (3))
INSERT INTO tally (span, at, queue, kind, name, bucket, count, sum_us)
SELECT 60, at, iif(n = 1, queue, ''), iif(n < 3, kind, ''), name, bucket, sum(count), sum(sum_us)
  FROM named CROSS JOIN level
 GROUP BY 2, 3, 4, 5, 6
ON CONFLICT (span, at, queue, kind, name, bucket)
DO UPDATE SET count = tally.count + excluded.count, sum_us = tally.sum_us + excluded.sum_us

-- name: tally_delta_remove
-- postgres
-- `tally_fold` has taken them.
-- sqlite
DELETE FROM tally_delta
 WHERE rowid < (SELECT min(rowid) FROM tally_delta) + :most
RETURNING 1

-- name: tally_roll
-- Moves the oldest sums that are old enough into those of a longer span.
-- postgres
WITH oldest AS MATERIALIZED (
  SELECT date_bin(make_interval(secs => :wide::integer), min(at), 'epoch'::timestamptz) AS at
    FROM tally WHERE span = :fine::integer
), gone AS (
  DELETE FROM tally USING oldest
   WHERE tally.span = :fine::integer AND tally.at < oldest.at + make_interval(secs => :wide::integer)
     AND oldest.at + make_interval(secs => :wide::integer) <= {now} - make_interval(secs => :age::integer)
  RETURNING oldest.at, tally.queue, tally.kind, tally.name, tally.bucket, tally.count, tally.sum_us
), added AS (
  INSERT INTO tally (span, at, queue, kind, name, bucket, count, sum_us)
  SELECT :wide::integer, at, queue, kind, name, bucket, sum(count), sum(sum_us)
    FROM gone
   GROUP BY at, queue, kind, name, bucket
   ORDER BY at, queue, kind, name, bucket
  ON CONFLICT (span, at, queue, kind, name, bucket)
  DO UPDATE SET count = tally.count + excluded.count, sum_us = tally.sum_us + excluded.sum_us
)
SELECT count(*) FROM gone
-- sqlite
INSERT INTO tally (span, at, queue, kind, name, bucket, count, sum_us)
SELECT :wide, oldest.at, queue, kind, name, bucket, sum(count), sum(sum_us)
  FROM (SELECT min(at) / (:wide * 1000000) * (:wide * 1000000) AS at FROM tally WHERE span = :fine) AS oldest
 CROSS JOIN tally
 WHERE tally.span = :fine AND tally.at < oldest.at + :wide * 1000000
   AND oldest.at + :wide * 1000000 <= {now} - :age * 1000000
 GROUP BY queue, kind, name, bucket
ON CONFLICT (span, at, queue, kind, name, bucket)
DO UPDATE SET count = tally.count + excluded.count, sum_us = tally.sum_us + excluded.sum_us
RETURNING 1

-- name: tally_rolled
-- postgres
-- `tally_roll` has taken them.
-- sqlite
DELETE FROM tally
 WHERE span = :fine
   AND at < (SELECT min(at) / (:wide * 1000000) * (:wide * 1000000) FROM tally WHERE span = :fine) + :wide * 1000000

-- name: tally_forget
-- postgres
DELETE FROM tally WHERE span = :span::integer AND at < {now} - make_interval(secs => :age::integer)
-- sqlite
DELETE FROM tally WHERE span = :span AND at < {now} - :age * 1000000

-- name: tally_label_forget
-- Makes room for other pairs, once nothing is kept of one.
DELETE FROM tally_label
 WHERE NOT EXISTS (SELECT 1 FROM (SELECT DISTINCT queue, kind FROM tally) AS kept
                    WHERE kept.queue = tally_label.queue AND kept.kind = tally_label.kind)

-- name: tally_sums
-- What was counted in each step of time: sums, and what is not folded yet. Sums are looked up one by one, at each
-- place where one may begin: others of the same time are many. :in_queue and :in_kinds say which: '' is that of all,
-- NULL every one by itself.
-- postgres
-- (OFFSET: one look-up a place, whatever the planner takes their number to be.)
WITH place AS MATERIALIZED (
  SELECT s.span, begins.at
    FROM (VALUES (60), (600), (3600)) AS s (span)
   CROSS JOIN LATERAL generate_series(
         greatest((SELECT min(at) FROM tally WHERE tally.span = s.span),
                  date_bin(make_interval(secs => s.span),
                           :since::timestamptz + make_interval(secs => s.span) - interval '1 microsecond',
                           'epoch'::timestamptz)),
         (SELECT max(at) FROM tally WHERE tally.span = s.span AND at < :until::timestamptz),
         make_interval(secs => s.span)) AS begins (at)
)
SELECT name, date_bin(make_interval(secs => :step::integer), at, 'epoch'::timestamptz),
       bucket, CASE WHEN :by_queue::boolean THEN queue END, CASE WHEN :by_kind::boolean THEN kind END,
       sum(count)::bigint, sum(sum_us)::bigint
  FROM (SELECT sums.*
          FROM place CROSS JOIN LATERAL (
               SELECT at, count, sum_us, bucket, name, queue, kind FROM tally
                WHERE span = place.span AND at = place.at AND queue = :in_queue::text AND kind = ANY(:in_kinds::text[])
               OFFSET 0) AS sums
         UNION ALL
        SELECT sums.*
          FROM place CROSS JOIN LATERAL (
               SELECT at, count, sum_us, bucket, name, queue, kind FROM tally
                WHERE span = place.span AND at = place.at AND queue = :in_queue::text AND kind > ''
               OFFSET 0) AS sums
         WHERE :in_kinds::text[] IS NULL
         UNION ALL
        SELECT sums.*
          FROM place CROSS JOIN LATERAL (
               SELECT at, count, sum_us, bucket, name, queue, kind FROM tally
                WHERE span = place.span AND at = place.at AND queue > ''
                  AND (:in_kinds::text[] IS NULL OR kind = ANY(:in_kinds::text[]))
               OFFSET 0) AS sums
         WHERE :in_queue::text IS NULL
         UNION ALL
        SELECT at, count, sum_us, bucket, name, queue, kind FROM tally_delta
         WHERE at >= :since::timestamptz AND at < :until::timestamptz AND name <> 'remove'
           AND (:queue::text IS NULL OR queue = :queue::text) AND (:kinds::text[] IS NULL OR kind = ANY(:kinds::text[]))
       ) AS counted
 WHERE (:durations::boolean IS NULL OR (name IN ('wait', 'run')) = :durations::boolean)
   AND (:name::text IS NULL OR name = :name::text)
 GROUP BY 1, 2, 3, 4, 5
 ORDER BY 2, 4, 5, 1, 3
-- sqlite
WITH RECURSIVE s (span, us) AS (VALUES (60, 60000000), (600, 600000000), (3600, 3600000000)),
place (span, us, at, last) AS (
  SELECT span, us,
         max((SELECT min(at) FROM tally WHERE tally.span = s.span), (:since + us - 1) / us * us),
         (SELECT max(at) FROM tally WHERE tally.span = s.span AND at < :until)
    FROM s
  UNION ALL
  SELECT span, us, at + us, last FROM place WHERE at < last
)
SELECT name, at / (:step * 1000000) * (:step * 1000000), bucket,
       CASE WHEN :by_queue THEN queue END, CASE WHEN :by_kind THEN kind END, sum(count), sum(sum_us)
  FROM (SELECT sums.at, count, sum_us, bucket, name, queue, kind
          FROM place CROSS JOIN tally AS sums ON sums.span = place.span AND sums.at = place.at
                            AND sums.queue = :in_queue AND sums.kind IN (SELECT value FROM json_each(:in_kinds))
         WHERE place.at <= place.last
         UNION ALL
        SELECT sums.at, count, sum_us, bucket, name, queue, kind
          FROM place CROSS JOIN tally AS sums ON sums.span = place.span AND sums.at = place.at
                            AND sums.queue = :in_queue AND sums.kind > ''
         WHERE place.at <= place.last AND :in_kinds IS NULL
         UNION ALL
        SELECT sums.at, count, sum_us, bucket, name, queue, kind
          FROM place CROSS JOIN tally AS sums ON sums.span = place.span AND sums.at = place.at
                            AND sums.queue > ''
         WHERE place.at <= place.last AND :in_queue IS NULL AND (:in_kinds IS NULL OR kind IN (SELECT value FROM json_each(:in_kinds)))
         UNION ALL
        SELECT at, count, sum_us, bucket, name, queue, kind FROM tally_delta
         WHERE at >= :since AND at < :until AND name <> 'remove'
           AND (:queue IS NULL OR queue = :queue) AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))) AS counted
 WHERE (:durations IS NULL OR (name IN ('wait', 'run')) = :durations) AND (:name IS NULL OR name = :name)
 GROUP BY 1, 2, 3, 4, 5
 ORDER BY 2, 4, 5, 1, 3

-- name: job_counts
-- Jobs by queue and state, each state from an index that holds no other finished job. Without a state: all of the queue.
-- postgres
SELECT queue, 'QUEUED', count(*) FROM job WHERE state = 'QUEUED' GROUP BY queue
 UNION ALL
SELECT queue, 'RUNNING', count(*) FROM job WHERE state = 'RUNNING' GROUP BY queue
 UNION ALL
SELECT queue, 'FAILED', count(*) FROM job WHERE state = 'FAILED' GROUP BY queue
 UNION ALL
SELECT queue, state, count(*) FROM job WHERE {unusual} GROUP BY queue, state
 UNION ALL
SELECT queue, NULL, sum(count)::bigint
  FROM (SELECT queue, count FROM queue_total
         UNION ALL
        SELECT queue, CASE name WHEN 'create' THEN count ELSE -count END FROM tally_delta
         WHERE name IN ('create', 'remove')) AS total
 GROUP BY queue
-- sqlite
SELECT queue, 'QUEUED', count(*) FROM job WHERE state = 'QUEUED' GROUP BY queue
 UNION ALL
SELECT queue, 'RUNNING', count(*) FROM job WHERE state = 'RUNNING' GROUP BY queue
 UNION ALL
SELECT queue, 'FAILED', count(*) FROM job WHERE state = 'FAILED' GROUP BY queue
 UNION ALL
SELECT queue, state, count(*) FROM job WHERE {unusual} GROUP BY queue, state
 UNION ALL
SELECT queue, NULL, sum(n)
  FROM (WITH mark AS MATERIALIZED (
          SELECT number, number = 0 OR EXISTS (SELECT 1 FROM job WHERE job.rowid = number AND job.id = job_id) AS holds
            FROM tally_mark)
        SELECT queue, count AS n FROM queue_total WHERE (SELECT holds FROM mark)
         UNION ALL
        SELECT queue, CASE name WHEN 'create' THEN count ELSE -count END FROM tally_delta
         WHERE name IN ('create', 'remove') AND (SELECT holds FROM mark)
         UNION ALL
        SELECT queue, 1 FROM job
         WHERE rowid > (SELECT CASE WHEN holds THEN number ELSE 0 END FROM mark)) AS total
 GROUP BY queue

-- name: job_state_counts
-- The same, whatever their queue.
-- postgres
SELECT 'QUEUED', count(*) FROM job WHERE state = 'QUEUED'
 UNION ALL
SELECT 'RUNNING', count(*) FROM job WHERE state = 'RUNNING'
 UNION ALL
SELECT 'FAILED', count(*) FROM job WHERE state = 'FAILED'
 UNION ALL
SELECT state, count(*) FROM job WHERE {unusual} GROUP BY state
 UNION ALL
SELECT NULL, coalesce(sum(count), 0)::bigint
  FROM (SELECT count FROM queue_total
         UNION ALL
        SELECT CASE name WHEN 'create' THEN count ELSE -count END FROM tally_delta
         WHERE name IN ('create', 'remove')) AS total
-- sqlite
SELECT 'QUEUED', count(*) FROM job WHERE state = 'QUEUED'
 UNION ALL
SELECT 'RUNNING', count(*) FROM job WHERE state = 'RUNNING'
 UNION ALL
SELECT 'FAILED', count(*) FROM job WHERE state = 'FAILED'
 UNION ALL
SELECT state, count(*) FROM job WHERE {unusual} GROUP BY state
 UNION ALL
SELECT NULL, coalesce(sum(n), 0)
  FROM (WITH mark AS MATERIALIZED (
          SELECT number, number = 0 OR EXISTS (SELECT 1 FROM job WHERE job.rowid = number AND job.id = job_id) AS holds
            FROM tally_mark)
        SELECT count AS n FROM queue_total WHERE (SELECT holds FROM mark)
         UNION ALL
        SELECT CASE name WHEN 'create' THEN count ELSE -count END FROM tally_delta
         WHERE name IN ('create', 'remove') AND (SELECT holds FROM mark)
         UNION ALL
        SELECT count(*) FROM job
         WHERE rowid > (SELECT CASE WHEN holds THEN number ELSE 0 END FROM mark)) AS total

-- name: failure_fold
-- postgres
WITH gone AS (
  DELETE FROM failure_delta
   WHERE ctid = ANY(ARRAY(SELECT ctid FROM failure_delta LIMIT :most FOR UPDATE SKIP LOCKED))
  RETURNING at, count, fingerprint
), added AS (
  INSERT INTO failure_hour (at, count, fingerprint)
  SELECT at, sum(count), fingerprint FROM gone GROUP BY at, fingerprint ORDER BY fingerprint, at
  ON CONFLICT (fingerprint, at) DO UPDATE SET count = failure_hour.count + excluded.count
)
SELECT count(*) FROM gone
-- sqlite
-- The trigger has added them.

-- name: failure_hour_forget
-- Removes the hours of which nothing is kept.
DELETE FROM failure_hour WHERE count = 0
