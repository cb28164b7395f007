-- Buckets of rates, where no claim of a job is what takes from them: sources of pipelines, and hosts of requests.

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
