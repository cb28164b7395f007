-- Buckets of sources and hosts, from which no claim of a job takes; and clearing any bucket.

-- name: bucket_open
-- Locks a bucket, and tells how many microseconds it is ahead of now.
-- postgres
INSERT INTO bucket AS b (scope, key, free_at) VALUES (:scope, :key, {now})
ON CONFLICT (scope, key) DO UPDATE SET free_at = greatest(b.free_at, {now})
RETURNING (extract(epoch FROM free_at - {now}) * 1000000)::bigint
-- sqlite
INSERT INTO bucket AS b (scope, key, free_at) VALUES (:scope, :key, {now})
ON CONFLICT (scope, key) DO UPDATE SET free_at = max(b.free_at, {now})
RETURNING free_at - {now}

-- name: bucket_add
-- postgres
UPDATE bucket SET free_at = free_at + :added_us::bigint{micros} WHERE scope = :scope AND key = :key
-- sqlite
UPDATE bucket SET free_at = free_at + :added_us WHERE scope = :scope AND key = :key

-- name: bucket_clear
-- Lets a bucket be full, and tells how many microseconds it was ahead of now; no row: it was full.
-- postgres
DELETE FROM bucket WHERE scope = :scope AND key = :key AND free_at > {now}
RETURNING (extract(epoch FROM free_at - {now}) * 1000000)::bigint
-- sqlite
DELETE FROM bucket WHERE scope = :scope AND key = :key AND free_at > {now}
RETURNING free_at - {now}

-- name: bucket_ahead
-- The buckets that are furthest ahead of now, and by how many microseconds; of so many, those of one rule.
-- postgres
SELECT key, (extract(epoch FROM free_at - {now}) * 1000000)::bigint
  FROM (SELECT scope, key, free_at FROM bucket WHERE free_at > {now} ORDER BY free_at DESC LIMIT :look) AS furthest
 WHERE scope = :scope AND substr(key, 2, length(CAST(:prefix AS text))) = CAST(:prefix AS text)
 ORDER BY free_at DESC, key
 LIMIT :most
-- sqlite
SELECT key, free_at - {now}
  FROM (SELECT scope, key, free_at FROM bucket WHERE free_at > {now} ORDER BY free_at DESC LIMIT :look)
 WHERE scope = :scope AND substr(key, 2, length(:prefix)) = :prefix
 ORDER BY free_at DESC, key
 LIMIT :most
