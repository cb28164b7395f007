-- Records that are gone at the source.

-- name: removal_decide
-- Records what an operator says of everything that is marked and not decided so yet, run by run. A
-- change of mind is a second row: who decided first, and why, stays on the record.
INSERT INTO removal_decision (pipeline_id, root_id, decision, records, actor, reason, at)
SELECT raw.pipeline_id, raw.missing_in, :decision, count(*), :actor, :reason, {now}
  FROM raw
 WHERE raw.pipeline_id = :pipeline_id AND raw.missing_in IS NOT NULL AND raw.key NOT LIKE '?%'
 GROUP BY raw.pipeline_id, raw.missing_in
ON CONFLICT (pipeline_id, root_id, decision) DO NOTHING
RETURNING records

-- name: removal_decisions
SELECT {text:root_id}, decision, records, actor, reason, at
  FROM removal_decision
 WHERE pipeline_id = :pipeline_id
 ORDER BY at, root_id

-- name: raw_gone
-- What was landed of these maps to a deletion: another mapping may say something else.
-- postgres
-- For the planner: see raw_read.
UPDATE raw SET fate = 4
 WHERE pipeline_id = :pipeline_id AND key = ANY (ARRAY(SELECT unnest(:key::text[])))
-- sqlite
UPDATE raw SET fate = 4
 WHERE pipeline_id = :pipeline_id AND key IN (SELECT value FROM json_each(:key))

-- name: raw_deleted
-- Records that a tombstone with a version removed: what is older does not bring them back (H-83).
-- postgres
UPDATE raw SET fate = 5, version = greatest(raw.version, i.version)
  FROM unnest(:key::text[], :version::bigint[]) AS i (key, version)
 WHERE raw.pipeline_id = :pipeline_id AND raw.key = i.key AND raw.removed_by IS NOT NULL
-- sqlite: each
UPDATE raw SET fate = 5, version = max(version, :version)
 WHERE pipeline_id = :pipeline_id AND key = :key AND removed_by IS NOT NULL

-- name: raw_gone_for_good
-- Landed deletions that a full run did not see are the source's own by now, whatever the mapping says.
UPDATE raw SET fate = 2
 WHERE pipeline_id = :pipeline_id AND removed_by IS NOT NULL AND fate = 4 AND seen < :seen

-- name: raw_known
-- What is known of keys and not removed: the version, and whether this run has seen it.
-- postgres
-- For the planner: see raw_read.
SELECT key, version, root_id = :root_id::uuid FROM raw
 WHERE pipeline_id = :pipeline_id AND key = ANY (ARRAY(SELECT unnest(:key::text[])))
   AND removed_by IS NULL
-- sqlite
SELECT key, version, root_id = :root_id FROM raw
 WHERE pipeline_id = :pipeline_id AND key IN (SELECT value FROM json_each(:key))
   AND removed_by IS NULL

-- name: raw_mark_missing
-- What a complete full run did not see, and no later one (H-84). A page of it, in
-- the order of the keys: a statement's way back takes as much as all that it changes.
-- postgres
UPDATE raw SET missing_in = :root_id::uuid
 WHERE pipeline_id = :pipeline_id
   AND key IN (SELECT key FROM raw
                WHERE pipeline_id = :pipeline_id AND key >= :after::text AND seen < :seen
                  AND removed_by IS NULL AND missing_in IS NULL
                ORDER BY key
                LIMIT :most::bigint)
RETURNING key
-- sqlite
UPDATE raw SET missing_in = :root_id
 WHERE pipeline_id = :pipeline_id
   AND key IN (SELECT key FROM raw
                WHERE pipeline_id = :pipeline_id AND key >= :after AND seen < :seen
                  AND removed_by IS NULL AND missing_in IS NULL
                ORDER BY key
                LIMIT :most)
RETURNING key

-- name: raw_missing
-- Keys that are marked as missing: those that an operator has confirmed, or has not, or all of them.
-- Keys that were made up (?…) are nobody's in the target: they need no confirmation.
SELECT key FROM raw
 WHERE pipeline_id = :pipeline_id AND missing_in IS NOT NULL AND key > :after
   AND (CAST(:confirmed AS boolean) IS NULL OR CAST(:confirmed AS boolean) =
        (key LIKE '?%'
         OR EXISTS (SELECT 1 FROM removal_decision AS d
                     WHERE d.pipeline_id = raw.pipeline_id AND d.root_id = raw.missing_in
                       AND d.decision = 'confirmed')))
 ORDER BY key
 LIMIT :most

-- name: raw_missing_count
-- How many records are marked as missing, how many of them an operator has confirmed or need it not
-- (see raw_missing), how many live.
SELECT (SELECT count(*) FROM raw WHERE pipeline_id = :pipeline_id AND missing_in IS NOT NULL),
       (SELECT count(*) FROM raw
         WHERE raw.pipeline_id = :pipeline_id AND raw.missing_in IS NOT NULL
           AND (raw.key LIKE '?%'
                OR EXISTS (SELECT 1 FROM removal_decision AS d
                            WHERE d.pipeline_id = raw.pipeline_id AND d.root_id = raw.missing_in
                              AND d.decision = 'confirmed'))),
       (SELECT count(*) FROM raw
         WHERE pipeline_id = :pipeline_id AND removed_by IS NULL AND key NOT LIKE '?%')

-- name: raw_remove
-- postgres
-- For the planner: see raw_read.
UPDATE raw SET removed_by = :root_id::uuid, missing_in = NULL
 WHERE pipeline_id = :pipeline_id AND key = ANY (ARRAY(SELECT unnest(:key::text[])))
-- sqlite
UPDATE raw SET removed_by = :root_id, missing_in = NULL
 WHERE pipeline_id = :pipeline_id AND key IN (SELECT value FROM json_each(:key))

-- name: raw_removed
SELECT key FROM raw WHERE pipeline_id = :pipeline_id AND removed_by = :root_id ORDER BY key LIMIT :most

-- name: raw_restore
-- postgres
-- For the planner: see raw_read.
UPDATE raw SET removed_by = NULL
 WHERE pipeline_id = :pipeline_id AND key = ANY (ARRAY(SELECT unnest(:key::text[])))
   AND removed_by IS NOT NULL
-- sqlite
UPDATE raw SET removed_by = NULL
 WHERE pipeline_id = :pipeline_id AND key IN (SELECT value FROM json_each(:key))
   AND removed_by IS NOT NULL

-- name: raw_unmark
-- postgres
-- For the planner: see raw_read.
UPDATE raw SET missing_in = NULL
 WHERE pipeline_id = :pipeline_id AND key = ANY (ARRAY(SELECT unnest(:key::text[])))
   AND missing_in IS NOT NULL
-- sqlite
UPDATE raw SET missing_in = NULL
 WHERE pipeline_id = :pipeline_id AND key IN (SELECT value FROM json_each(:key))
   AND missing_in IS NOT NULL

-- name: raw_unmark_all
UPDATE raw SET missing_in = NULL WHERE pipeline_id = :pipeline_id AND missing_in IS NOT NULL
