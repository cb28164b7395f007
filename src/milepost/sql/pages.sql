-- Pages of records: landed, then consolidated.

-- name: page_add
-- postgres
INSERT INTO page (root_id, ordinal, number, job_id, records, fresh, changed, unchanged, pending,
                  keys, gone, at)
SELECT i.root_id, i.ordinal, i.number, i.id, i.records, i.fresh, i.changed, i.unchanged, i.pending,
       i.keys, i.gone, {now}
  FROM unnest(:root_id::uuid[], :ordinal::integer[], :number::integer[], :id::uuid[],
              :records::integer[], :fresh::integer[], :changed::integer[], :unchanged::integer[],
              :pending::integer[], :keys::text[], :gone::text[])
       AS i (root_id, ordinal, number, id, records, fresh, changed, unchanged, pending, keys, gone)
-- sqlite: each
INSERT INTO page (root_id, ordinal, number, job_id, records, fresh, changed, unchanged, pending,
                  keys, gone, at)
VALUES (:root_id, :ordinal, :number, :id, :records, :fresh, :changed, :unchanged, :pending, :keys,
        :gone, {now})

-- name: page_average
SELECT count(*), coalesce(sum(pending), 0) FROM page WHERE root_id = :root_id AND pending > 0

-- name: page_done
-- Marks pages as consolidated, by the attempt that took them.
-- postgres
UPDATE page SET pending = 0, keys = NULL, taken_by = NULL, taken_fence = NULL
  FROM unnest(:ordinal::integer[], :number::integer[]) AS i (ordinal, number)
 WHERE page.root_id = :root_id::uuid AND page.ordinal = i.ordinal AND page.number = i.number
   AND page.taken_by = :id::uuid AND page.taken_fence = :fence
RETURNING page.number
-- sqlite: each
UPDATE page SET pending = 0, keys = NULL, taken_by = NULL, taken_fence = NULL
 WHERE root_id = :root_id AND ordinal = :ordinal AND number = :number
   AND taken_by = :id AND taken_fence = :fence
RETURNING number

-- name: page_empty
SELECT count(*) FROM page WHERE root_id = :root_id AND ordinal = :ordinal AND records = 0

-- name: page_gone
-- Pages of a run that tell of deletions which are not applied yet.
SELECT ordinal, number, gone FROM page WHERE root_id = :root_id AND gone IS NOT NULL LIMIT :most

-- name: page_gone_done
-- postgres
UPDATE page SET gone = NULL
  FROM unnest(:ordinal::integer[], :number::integer[]) AS i (ordinal, number)
 WHERE page.root_id = :root_id::uuid AND page.ordinal = i.ordinal AND page.number = i.number
-- sqlite: each
UPDATE page SET gone = NULL
 WHERE root_id = :root_id AND ordinal = :ordinal AND number = :number

-- name: page_hold
-- Holds the jobs whose pages are to be stored. What is missing from the answer lost its lease.
-- postgres
-- For the planner: see job_settle.
SELECT i.place, coalesce(progress.saves, 0), coalesce(progress.done, false)
  FROM unnest(:place::integer[], :id::uuid[], :fence::bigint[]) AS i (place, id, fence)
  JOIN job ON job.id = i.id AND job.fence = i.fence AND i.fence % 1 = 0
          AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END
  LEFT JOIN progress ON progress.job_id = job.id
 ORDER BY job.id
   FOR NO KEY UPDATE OF job
-- sqlite
SELECT i.place, coalesce(progress.saves, 0), coalesce(progress.done, 0)
  FROM {rows:place id fence} AS i
  CROSS JOIN job ON job.id = i.id AND job.fence = i.fence AND job.state = 'RUNNING'
  LEFT JOIN progress ON progress.job_id = job.id

-- name: page_last
-- The last page of a partition, with the keys that are in it.
SELECT number, keys FROM page
 WHERE root_id = :root_id AND ordinal = :ordinal
 ORDER BY number DESC
 LIMIT 1

-- name: page_note
-- Notes on the jobs that are held which page was stored.
-- postgres
UPDATE job
   SET move = 'note', version = version + 1, phase = 'page ' || i.number, detail = i.detail,
       actor = NULL
  FROM unnest(:id::uuid[], :fence::bigint[], :number::bigint[], :detail::text[])
       AS i (id, fence, number, detail)
 WHERE job.id = i.id AND job.fence = i.fence AND i.fence % 1 = 0
   AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END
-- sqlite: each
UPDATE job
   SET move = 'note', version = version + 1, phase = 'page ' || :number, detail = :detail,
       actor = NULL
 WHERE id = :id AND fence = :fence AND state = 'RUNNING'

-- name: page_progress
-- Moves cursors on, each from the page it was read at. No row back: somebody else has moved it.
-- postgres
INSERT INTO progress (job_id, fence, fraction, next_offset, records, position, saves, done,
                      created_at, updated_at)
SELECT i.id, i.fence, i.fraction, i.records, i.records, i.position, i.number + 1, i.done, {now}, {now}
  FROM unnest(:id::uuid[], :fence::bigint[], :fraction::float8[], :records::bigint[],
              :position::bytea[], :number::bigint[], :done::boolean[])
       AS i (id, fence, fraction, records, position, number, done)
 ORDER BY i.id
ON CONFLICT (job_id) DO UPDATE
  SET fence = excluded.fence, fraction = excluded.fraction,
      next_offset = progress.next_offset + excluded.next_offset,
      records = progress.records + excluded.records, position = excluded.position,
      saves = excluded.saves, done = excluded.done, updated_at = excluded.updated_at
 WHERE progress.saves = excluded.saves - 1 AND NOT progress.done
RETURNING job_id::text
-- sqlite: each
INSERT INTO progress (job_id, fence, fraction, next_offset, records, position, saves, done,
                      created_at, updated_at)
VALUES (:id, :fence, :fraction, :records, :records, :position, :number + 1, :done, {now}, {now})
ON CONFLICT (job_id) DO UPDATE
  SET fence = excluded.fence, fraction = excluded.fraction,
      next_offset = progress.next_offset + excluded.next_offset,
      records = progress.records + excluded.records, position = excluded.position,
      saves = excluded.saves, done = excluded.done, updated_at = excluded.updated_at
 WHERE progress.saves = excluded.saves - 1 AND NOT progress.done
RETURNING job_id

-- name: page_repeat
-- Counts a page that came again: B's SkipDuplicate and SkipCompleted.
UPDATE progress
   SET duplicates = duplicates + :duplicate, completions = completions + :completed
 WHERE job_id = :id

-- name: page_take
-- Takes pages to consolidate that nobody works on. One whose taker does not run any more with that
-- fence is free again (H-67).
-- postgres
WITH free AS MATERIALIZED (
  SELECT page.root_id, page.ordinal, page.number
    FROM page
   WHERE page.root_id = :root_id::uuid AND page.pending > 0
     AND (page.taken_by IS NULL
          OR (page.taken_by = :id::uuid AND page.taken_fence <= :fence::bigint)
          OR NOT EXISTS (SELECT 1 FROM job WHERE job.id = page.taken_by
                            AND job.fence = page.taken_fence AND job.state = 'RUNNING'))
   ORDER BY page.ordinal, page.number
   LIMIT (SELECT :most::bigint)
     FOR UPDATE SKIP LOCKED
)
UPDATE page SET taken_by = :id::uuid, taken_fence = :fence::bigint
  FROM free
 WHERE page.root_id = free.root_id AND page.ordinal = free.ordinal AND page.number = free.number
RETURNING page.ordinal, page.number, page.keys, page.fresh = page.pending
-- sqlite
UPDATE page SET taken_by = :id, taken_fence = :fence
 WHERE root_id = :root_id AND (ordinal, number) IN (
       SELECT ordinal, number FROM page
        WHERE root_id = :root_id AND pending > 0
          AND (taken_by IS NULL OR (taken_by = :id AND taken_fence <= :fence)
               OR NOT EXISTS (SELECT 1 FROM job WHERE job.id = page.taken_by
                                 AND job.fence = page.taken_fence AND job.state = 'RUNNING'))
        ORDER BY ordinal, number
        LIMIT :most)
RETURNING ordinal, number, keys, fresh = pending

-- name: raw_any
SELECT EXISTS (SELECT 1 FROM raw WHERE pipeline_id = :pipeline_id)

-- name: raw_keys
-- Keys of what was landed and is to be mapped again: of what was removed, only what the mapping itself
-- took for a deletion.
SELECT key FROM raw
 WHERE pipeline_id = :pipeline_id AND key > :after AND (removed_by IS NULL OR fate = 4)
 ORDER BY key
 LIMIT :most

-- name: raw_insert
-- Records of which none was ever seen; one that was refuses them all, and raw_land is the way.
-- postgres
INSERT INTO raw (pipeline_id, key, version, hash, payload, root_id, seen, ordinal, fate)
SELECT :pipeline_id, i.key, i.version, i.hash, i.payload, :root_id::uuid, :seen::bigint, i.ordinal, 0
  FROM unnest(:key::text[], :version::bigint[], :hash::bytea[], :payload::bytea[],
              :ordinal::integer[]) AS i (key, version, hash, payload, ordinal)
-- sqlite
INSERT INTO raw (pipeline_id, key, version, hash, payload, root_id, seen, ordinal, fate)
SELECT :pipeline_id, i.key, i.version, i.hash, i.payload, :root_id, :seen, i.ordinal, 0
  FROM {rows:key version hash* payload* ordinal} AS i

-- name: raw_land
-- What the source says of records; what is here already is replaced only by what is not older (H-83).
-- One that is older than its tombstone stays removed.
-- postgres
INSERT INTO raw (pipeline_id, key, version, hash, payload, root_id, seen, ordinal, fate)
SELECT :pipeline_id, i.key, i.version, i.hash, i.payload, :root_id::uuid, :seen::bigint, i.ordinal, 0
  FROM unnest(:key::text[], :version::bigint[], :hash::bytea[], :payload::bytea[],
              :ordinal::integer[]) AS i (key, version, hash, payload, ordinal)
ON CONFLICT (pipeline_id, key) DO UPDATE
  SET fate = CASE WHEN raw.version > excluded.version
                  THEN CASE WHEN raw.fate = 5 AND raw.removed_by IS NOT NULL THEN 5 ELSE 3 END
                  WHEN raw.hash = excluded.hash THEN 2 ELSE 1 END,
      version = greatest(raw.version, excluded.version),
      hash = CASE WHEN raw.version > excluded.version THEN raw.hash ELSE excluded.hash END,
      payload = CASE WHEN raw.version > excluded.version OR raw.hash = excluded.hash
                     THEN raw.payload ELSE excluded.payload END,
      root_id = excluded.root_id, seen = greatest(raw.seen, excluded.seen),
      ordinal = excluded.ordinal, missing_in = NULL,
      removed_by = CASE WHEN raw.fate = 5 AND raw.version > excluded.version THEN raw.removed_by END
RETURNING key, fate, CASE WHEN fate >= 2 THEN hash END
-- sqlite
INSERT INTO raw (pipeline_id, key, version, hash, payload, root_id, seen, ordinal, fate)
SELECT :pipeline_id, i.key, i.version, i.hash, i.payload, :root_id, :seen, i.ordinal, 0
  FROM {rows:key version hash* payload* ordinal} AS i WHERE true
ON CONFLICT (pipeline_id, key) DO UPDATE
  SET fate = CASE WHEN raw.version > excluded.version
                  THEN CASE WHEN raw.fate = 5 AND raw.removed_by IS NOT NULL THEN 5 ELSE 3 END
                  WHEN raw.hash = excluded.hash THEN 2 ELSE 1 END,
      version = max(raw.version, excluded.version),
      hash = CASE WHEN raw.version > excluded.version THEN raw.hash ELSE excluded.hash END,
      payload = CASE WHEN raw.version > excluded.version OR raw.hash = excluded.hash
                     THEN raw.payload ELSE excluded.payload END,
      root_id = excluded.root_id, seen = max(raw.seen, excluded.seen),
      ordinal = excluded.ordinal, missing_in = NULL,
      removed_by = CASE WHEN raw.fate = 5 AND raw.version > excluded.version THEN raw.removed_by END
RETURNING key, fate, CASE WHEN fate >= 2 THEN hash END

-- name: raw_read
-- postgres
-- For the planner: of a list whose length it does not know it expects little, and looks each key
-- up; of a long one it would rather walk every record of the pipeline, of which it has no
-- statistics yet.
SELECT key, version, hash, payload FROM raw
 WHERE pipeline_id = :pipeline_id AND key = ANY (ARRAY(SELECT unnest(:key::text[])))
-- sqlite
SELECT key, version, hash, payload FROM raw
 WHERE pipeline_id = :pipeline_id AND key IN (SELECT value FROM json_each(:key))

-- name: raw_there
-- Records that a run has seen and could not land with their key: what is known of them stays (H-84).
-- postgres
-- For the planner: see raw_read.
UPDATE raw SET seen = greatest(seen, :seen::bigint), missing_in = NULL
 WHERE pipeline_id = :pipeline_id AND key = ANY (ARRAY(SELECT unnest(:key::text[])))
-- sqlite
UPDATE raw SET seen = max(seen, :seen), missing_in = NULL
 WHERE pipeline_id = :pipeline_id AND key IN (SELECT value FROM json_each(:key))

-- name: raw_seen
-- postgres
SELECT count(*) FROM raw
 WHERE pipeline_id = :pipeline_id AND root_id = :root_id::uuid AND ordinal = :ordinal
-- sqlite
SELECT count(*) FROM raw
 WHERE pipeline_id = :pipeline_id AND root_id = :root_id AND ordinal = :ordinal

-- name: run_unconsolidated
-- What is not done yet: pages that somebody took and did not finish count (H-67).
SELECT coalesce(sum(pending), 0) FROM page WHERE root_id = :root_id AND pending > 0
