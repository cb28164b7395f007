-- Jobs that a running job creates for a later step: staged, then published.

-- name: staged_add
-- Outputs of a running attempt, invisible until it succeeds. No row back means the lease was lost.
-- postgres
INSERT INTO staged (producer_id, fence, seq, step, job_id, codec, payload, limit_key)
SELECT :producer_id, :fence, t.seq, t.step, t.job_id, :codec, t.payload, t.limit_key
  FROM unnest(:seq::bigint[], :step::integer[], :job_id::uuid[], :payload::bytea[], :limit_key::text[])
       AS t (seq, step, job_id, payload, limit_key)
 WHERE EXISTS (SELECT 1 FROM job WHERE id = :producer_id AND fence = :fence AND state = 'RUNNING')
ON CONFLICT (producer_id, fence, seq)
  DO UPDATE SET step = excluded.step, codec = excluded.codec, payload = excluded.payload,
                limit_key = excluded.limit_key
RETURNING seq
-- sqlite: each
INSERT INTO staged (producer_id, fence, seq, step, job_id, codec, payload, limit_key)
SELECT :producer_id, :fence, :seq, :step, :job_id, :codec, :payload, :limit_key
 WHERE EXISTS (SELECT 1 FROM job WHERE id = :producer_id AND fence = :fence AND state = 'RUNNING')
ON CONFLICT (producer_id, fence, seq)
  DO UPDATE SET step = excluded.step, codec = excluded.codec, payload = excluded.payload,
                limit_key = excluded.limit_key
RETURNING seq

-- name: staged_put
-- Outputs of attempts that end in this transaction, under their fence.
-- postgres
INSERT INTO staged (producer_id, fence, seq, step, job_id, codec, payload, limit_key)
SELECT * FROM unnest(:producer_id::uuid[], :fence::bigint[], :seq::bigint[], :step::integer[],
                     :job_id::uuid[], :codec::text[], :payload::bytea[], :limit_key::text[])
-- sqlite
INSERT INTO staged (producer_id, fence, seq, step, job_id, codec, payload, limit_key)
SELECT producer_id, fence, seq, step, job_id, codec, payload, limit_key
  FROM {rows:producer_id fence seq step job_id codec payload* limit_key}

-- name: staged_remove
-- postgres
-- From where the last ones ended: below stand only dead entries, a million of them by and by.
DELETE FROM staged WHERE ctid = ANY (ARRAY(
  SELECT found.ctid
    FROM unnest(:producer_id::uuid[], :fence::bigint[], :low::bigint[], :high::bigint[])
         AS t (producer_id, fence, low, high)
   CROSS JOIN LATERAL (
         SELECT s.ctid FROM staged s
          WHERE s.producer_id = t.producer_id AND s.fence = t.fence AND s.seq >= t.low
            AND s.seq < t.high
         OFFSET 0) found))
-- sqlite: each
DELETE FROM staged
 WHERE producer_id = :producer_id AND fence = :fence AND seq >= :low AND seq < :high

-- name: staged_sweep
-- Throws away what nobody will publish: left by failed or lost attempts, or by deleted runs. What a
-- stopped run took back is kept with it: a run that resumes it publishes the rest.
-- It hops through the key from attempt to attempt: one may have staged a million, all wanted.
-- postgres
WITH RECURSIVE attempt (producer_id, fence) AS (
  (SELECT producer_id, fence FROM staged ORDER BY producer_id, fence LIMIT 1)
  UNION ALL
  SELECT after.producer_id, after.fence
    FROM attempt CROSS JOIN LATERAL (
         SELECT s.producer_id, s.fence FROM staged s
          WHERE (s.producer_id, s.fence) > (attempt.producer_id, attempt.fence)
          ORDER BY s.producer_id, s.fence
          LIMIT 1) after
), unwanted AS MATERIALIZED (
  SELECT a.producer_id, a.fence FROM attempt a
   WHERE (SELECT job.fence = a.fence AND job.state = 'RUNNING' FROM job WHERE job.id = a.producer_id)
         IS NOT TRUE
     AND (SELECT p.fence = a.fence FROM publication p WHERE p.producer_id = a.producer_id) IS NOT TRUE
)
DELETE FROM staged WHERE ctid = ANY (ARRAY(
  SELECT found.ctid
    FROM unwanted CROSS JOIN LATERAL (
         SELECT s.ctid FROM staged s
          WHERE s.producer_id = unwanted.producer_id AND s.fence = unwanted.fence
          ORDER BY s.producer_id, s.fence, s.seq
          LIMIT (SELECT :most::bigint)) found
   LIMIT :most))
-- sqlite
WITH RECURSIVE attempt (producer_id, fence) AS (
  SELECT * FROM (SELECT producer_id, fence FROM staged
                  WHERE producer_id >= '' ORDER BY producer_id, fence LIMIT 1) AS first
  UNION ALL
  SELECT s.producer_id, s.fence
    FROM attempt JOIN staged AS s
      ON s.rowid = coalesce((SELECT f.rowid FROM staged AS f
                              WHERE f.producer_id = attempt.producer_id AND f.fence > attempt.fence
                              ORDER BY f.producer_id, f.fence LIMIT 1),
                            (SELECT p.rowid FROM staged AS p
                              WHERE p.producer_id > attempt.producer_id
                              ORDER BY p.producer_id, p.fence LIMIT 1))
), unwanted (producer_id, fence) AS (
  SELECT producer_id, fence FROM attempt
   WHERE NOT EXISTS (SELECT 1 FROM job
                      WHERE job.id = attempt.producer_id AND job.fence = attempt.fence
                        AND job.state = 'RUNNING')
     AND NOT EXISTS (SELECT 1 FROM publication AS p
                      WHERE p.producer_id = attempt.producer_id AND p.fence = attempt.fence)
)
DELETE FROM staged WHERE rowid IN (
  SELECT s.rowid FROM unwanted CROSS JOIN staged AS s
   WHERE s.producer_id = unwanted.producer_id AND s.fence = unwanted.fence
   LIMIT :most)

-- name: publication_add
-- postgres
INSERT INTO publication (producer_id, fence, run_id, total, first_step)
SELECT t.id, t.fence, t.run_id, t.total,
       (SELECT min(step) FROM staged WHERE producer_id = t.id AND staged.fence = t.fence)
  FROM unnest(:id::uuid[], :fence::bigint[], :run_id::uuid[], :total::bigint[])
       AS t (id, fence, run_id, total)
-- sqlite: each
INSERT INTO publication (producer_id, fence, run_id, total, first_step)
VALUES (:id, :fence, :run_id, :total,
        (SELECT min(step) FROM staged WHERE producer_id = :id AND staged.fence = :fence))

-- name: publication_take
-- postgres
-- Nobody ever waits for these rows, so they may be held before the counters and the run.
SELECT producer_id::text, fence, run_id::text, total, published FROM publication
 WHERE published < total AND NOT withdrawn AND (:run_id::uuid[] IS NULL OR run_id = ANY (:run_id::uuid[]))
 ORDER BY publication.run_id, publication.producer_id
 LIMIT :most
   FOR UPDATE SKIP LOCKED
-- sqlite
SELECT producer_id, fence, run_id, total, published FROM publication
 WHERE published < total AND NOT withdrawn
   AND (:run_id IS NULL OR run_id IN (SELECT value FROM json_each(:run_id)))
 ORDER BY run_id, producer_id
 LIMIT :most

-- name: publication_publish
-- Turns staged outputs into jobs of their steps: gated, sleeping or queued as the step stands now.
-- In a run that is stopping they are not wanted any more.
-- postgres
WITH given AS MATERIALIZED (
  SELECT * FROM unnest(:producer_id::uuid[], :fence::bigint[], :run_id::uuid[], :low::bigint[],
                       :high::bigint[]) AS t (producer_id, fence, run_id, low, high)
), pinned AS MATERIALIZED (
  SELECT s.*, r.tenant, r.trace,
         (SELECT transport FROM queue WHERE queue.name = s.queue) AS transport
    FROM (SELECT DISTINCT run_id FROM given) t
   CROSS JOIN LATERAL (SELECT * FROM step WHERE step.run_id = t.run_id OFFSET 0) s
   CROSS JOIN LATERAL (SELECT tenant, trace FROM run WHERE run.id = t.run_id OFFSET 0) r
)
INSERT INTO job (id, {columns:pinned}, state, move, actor, codec, payload, limit_key, deadline_at, start_by,
                 tenant, trace, parent_id, run_id, step, ordinal, due_at, delay_us, created_at)
SELECT o.job_id, {columns:pinned s.},
       CASE WHEN s.gated AND NOT s.opened THEN 'GATED' WHEN s.poll_us IS NOT NULL THEN 'WAITING'
            WHEN s.transport <> 'store' THEN 'READY' ELSE 'QUEUED' END,
       'create', :actor, o.codec, o.payload, o.limit_key,
       {now} + s.deadline_us{micros}, {now} + s.start_within_us{micros},
       s.tenant, s.trace, o.producer_id, s.run_id, s.number, o.seq,
       CASE WHEN s.gated AND NOT s.opened THEN NULL ELSE {now} + s.poll_us{micros} END,
       CASE WHEN s.gated AND NOT s.opened THEN NULL ELSE s.poll_us END, {now}
  FROM given t
 CROSS JOIN LATERAL (SELECT * FROM staged o
                      WHERE o.producer_id = t.producer_id AND o.fence = t.fence AND o.seq >= t.low
                        AND o.seq < t.high
                     OFFSET 0) o
  JOIN pinned s ON s.run_id = t.run_id AND s.number = o.step
 ORDER BY o.producer_id, o.seq
-- sqlite: each
INSERT INTO job (id, {columns:pinned}, state, move, actor, codec, payload, limit_key, deadline_at, start_by,
                 tenant, trace, parent_id, run_id, step, ordinal, due_at, created_at, queued_seq)
SELECT o.job_id, {columns:pinned s.},
       CASE WHEN s.gated AND NOT s.opened THEN 'GATED' WHEN s.poll_us IS NOT NULL THEN 'WAITING'
            WHEN (SELECT transport FROM queue WHERE queue.name = s.queue) <> 'store' THEN 'READY'
            ELSE 'QUEUED' END,
       'create', :actor, o.codec, o.payload, o.limit_key,
       {now} + s.deadline_us, {now} + s.start_within_us,
       r.tenant, r.trace, o.producer_id, s.run_id, s.number, o.seq,
       CASE WHEN s.gated AND NOT s.opened THEN NULL ELSE {now} + s.poll_us END, {now},
       {number:o.limit_key s.queue s.priority}
  FROM staged o
  JOIN step s ON s.run_id = :run_id AND s.number = o.step
  JOIN run r ON r.id = :run_id
 WHERE o.producer_id = :producer_id AND o.fence = :fence AND o.seq >= :low AND o.seq < :high
 ORDER BY o.seq

-- name: publication_done
-- postgres
UPDATE publication SET published = t.high
  FROM unnest(:producer_id::uuid[], :high::bigint[]) AS t (producer_id, high)
 WHERE publication.producer_id = t.producer_id
-- sqlite: each
UPDATE publication SET published = :high WHERE producer_id = :producer_id

-- name: publication_withdraw
-- Runs that are stopping or have ended take back what is not published.
-- postgres
-- What a publisher holds is left to it: it looks at the run before it publishes.
UPDATE publication SET withdrawn = true
 WHERE producer_id = ANY (ARRAY(
         SELECT producer_id FROM publication
          WHERE run_id = ANY (ARRAY(SELECT unnest(:run_id::uuid[])))
            AND published < total AND NOT withdrawn
            FOR UPDATE SKIP LOCKED))
-- sqlite: each
UPDATE publication SET withdrawn = true
 WHERE run_id = :run_id AND published < total AND NOT withdrawn
