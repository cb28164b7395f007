-- Watermarks, and the readings that move them.

-- name: watermark_advance
-- Compares and sets. No row back: somebody else has moved it.
-- postgres
UPDATE pipeline
   SET mark = :mark, version = version + 1, move = 'advance', actor = :actor, reason = NULL, last_run_id = :run_id,
       last_run_completed_at = {now}, dataset_version = dataset_version + 1
 WHERE id = :pipeline_id AND mark IS NOT DISTINCT FROM CAST(:before_mark AS bigint)
RETURNING mark
-- sqlite
UPDATE pipeline
   SET mark = :mark, version = version + 1, move = 'advance', actor = :actor, reason = NULL, last_run_id = :run_id,
       last_run_completed_at = {now}, dataset_version = dataset_version + 1
 WHERE id = :pipeline_id AND mark IS :before_mark
RETURNING mark

-- name: watermark_entries
SELECT seq, move, from_mark, to_mark, {text:run_id}, actor, reason, at
  FROM watermark_entry
 WHERE pipeline_id = :pipeline_id
 ORDER BY seq

-- name: watermark_run
-- The last run that reads from the watermark, and whether it moved it.
SELECT run.state, p.after_mark
  FROM pipeline_run AS p JOIN run ON run.id = p.run_id
  LEFT JOIN pipeline_run AS r ON r.run_id = p.root_id
 WHERE p.pipeline_id = :pipeline_id AND p.mode <> 'replay'
   AND coalesce(r.mode, p.mode) IN ('full', 'incremental')
 ORDER BY p.number DESC
 LIMIT 1

-- name: watermark_override
UPDATE pipeline SET mark = :mark, version = version + 1, move = 'override', actor = :actor, reason = :reason
 WHERE id = :pipeline_id

-- name: watermark_touch
-- A run that leaves the watermark alone ended well: what is shown is a newer version.
UPDATE pipeline
   SET dataset_version = dataset_version + 1, last_run_completed_at = last_run_completed_at
 WHERE id = :pipeline_id

-- name: reading_add
-- postgres
INSERT INTO reading (root_id, ordinal, pipeline_id, low, high, start_mark, end_mark)
SELECT :root_id::uuid, i.ordinal, :pipeline_id, i.low, i.high, :start_mark, :end_mark
  FROM unnest(:ordinal::integer[], :low::text[], :high::text[]) AS i (ordinal, low, high)
-- sqlite: each
INSERT INTO reading (root_id, ordinal, pipeline_id, low, high, start_mark, end_mark)
VALUES (:root_id, :ordinal, :pipeline_id, :low, :high, :start_mark, :end_mark)

-- name: reading_close
-- postgres
UPDATE reading SET closed_at = {now}
  FROM unnest(:root_id::uuid[], :ordinal::integer[]) AS i (root_id, ordinal)
 WHERE reading.root_id = i.root_id AND reading.ordinal = i.ordinal AND closed_at IS NULL
-- sqlite: each
UPDATE reading SET closed_at = {now}
 WHERE root_id = :root_id AND ordinal = :ordinal AND closed_at IS NULL

-- name: reading_cover
-- A root that was read whole covers what earlier ones left open within its window.
-- postgres
UPDATE reading SET covered_by = CAST(:root_id AS uuid)
 WHERE pipeline_id = :pipeline_id AND closed_at IS NULL AND covered_by IS NULL
   AND root_id <> CAST(:root_id AS uuid) AND end_mark <= :end_mark
   AND (CAST(:start_mark AS bigint) IS NULL OR start_mark >= :start_mark)
-- sqlite
UPDATE reading SET covered_by = :root_id
 WHERE pipeline_id = :pipeline_id AND closed_at IS NULL AND covered_by IS NULL
   AND root_id <> :root_id AND end_mark <= :end_mark
   AND (:start_mark IS NULL OR start_mark >= :start_mark)

-- name: reading_gaps
-- What runs that ended left unread and no later one has covered.
SELECT {text:reading.root_id}, ordinal, low, high, reading.start_mark, reading.end_mark
  FROM reading JOIN pipeline_run AS p ON p.run_id = reading.root_id
 WHERE reading.pipeline_id = :pipeline_id AND closed_at IS NULL AND covered_by IS NULL
   AND p.mode IN ('full', 'incremental')
   AND NOT EXISTS (SELECT 1 FROM pipeline_run AS live JOIN run ON run.id = live.run_id
                    WHERE live.root_id = reading.root_id
                      AND run.state NOT IN {final})
 ORDER BY reading.root_id, ordinal

-- name: reading_last
SELECT coalesce(max(ordinal), -1) FROM reading WHERE root_id = :root_id

-- name: reading_least
-- Where the earliest thing begins that nobody has read; a beginning that is NULL counts as the first.
SELECT count(*), min(coalesce(reading.start_mark, -9223372036854775807))
  FROM reading JOIN pipeline_run AS p ON p.run_id = reading.root_id
 WHERE reading.pipeline_id = :pipeline_id AND closed_at IS NULL AND covered_by IS NULL
   AND p.mode IN ('full', 'incremental')

-- name: reading_open
-- What a root did not read to its end.
SELECT count(*) FROM reading WHERE root_id = :root_id AND closed_at IS NULL AND covered_by IS NULL

-- name: reading_shorten
-- A root that was read whole, and ends within what an earlier one left open: the rest stays open.
-- postgres
UPDATE reading SET start_mark = :end_mark
 WHERE pipeline_id = :pipeline_id AND closed_at IS NULL AND covered_by IS NULL
   AND root_id <> CAST(:root_id AS uuid) AND start_mark < :end_mark AND end_mark > :end_mark
   AND (CAST(:start_mark AS bigint) IS NULL OR start_mark >= :start_mark)
-- sqlite
UPDATE reading SET start_mark = :end_mark
 WHERE pipeline_id = :pipeline_id AND closed_at IS NULL AND covered_by IS NULL
   AND root_id <> :root_id AND start_mark < :end_mark AND end_mark > :end_mark
   AND (:start_mark IS NULL OR start_mark >= :start_mark)

-- name: pipeline_fresh
-- What is fresh again is told again when it grows old: one pipeline, or all of them.
-- postgres
UPDATE pipeline SET stale_at = NULL
 WHERE stale_at IS NOT NULL AND id = coalesce(CAST(:pipeline_id AS integer), id)
   AND (fresh_us IS NULL
        OR coalesce(CASE measure WHEN 'time' THEN 'epoch'::timestamptz + mark{micros}
                    ELSE last_run_completed_at END, created_at)
           >= {now} - fresh_us{micros})
RETURNING id
-- sqlite
UPDATE pipeline SET stale_at = NULL
 WHERE stale_at IS NOT NULL AND id = coalesce(CAST(:pipeline_id AS integer), id)
   AND (fresh_us IS NULL
        OR coalesce(CASE measure WHEN 'time' THEN mark ELSE last_run_completed_at END, created_at)
           >= {now} - fresh_us)
RETURNING id

-- name: pipeline_lags
-- How old each pipeline's watermark is, in microseconds, as `pipeline_stale` has it, and may be.
-- postgres
SELECT name, (extract(epoch FROM {now} - coalesce(
         CASE measure WHEN 'time' THEN 'epoch'::timestamptz + mark{micros}
                      ELSE last_run_completed_at END, created_at)) * 1000000)::bigint, fresh_us
  FROM pipeline
-- sqlite
SELECT name, {now} - coalesce(
         CASE measure WHEN 'time' THEN mark ELSE last_run_completed_at END, created_at), fresh_us
  FROM pipeline

-- name: pipeline_stale
-- Compares and sets: the caller that gets a row back sends the alert. What counts is the watermark, for
-- a sequence the time it last moved; before that, the pipeline's first start.
-- postgres
UPDATE pipeline SET stale_at = {now}
 WHERE stale_at IS NULL
   AND coalesce(CASE measure WHEN 'time' THEN 'epoch'::timestamptz + mark{micros}
                    ELSE last_run_completed_at END, created_at)
       < {now} - fresh_us{micros}
RETURNING name, queue, channel
-- sqlite
UPDATE pipeline SET stale_at = {now}
 WHERE stale_at IS NULL
   AND coalesce(CASE measure WHEN 'time' THEN mark ELSE last_run_completed_at END, created_at)
       < {now} - fresh_us
RETURNING name, queue, channel
