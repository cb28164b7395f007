-- The several results of a job.

-- name: output_add
-- Results of a running attempt, one of several. No row back means the lease was lost.
-- postgres
INSERT INTO job_output (job_id, fence, seq, payload)
SELECT :id, :fence, t.seq, t.payload
  FROM unnest(:seq::bigint[], :payload::bytea[]) AS t (seq, payload)
 WHERE EXISTS (SELECT 1 FROM job WHERE id = :id AND fence = :fence AND state = 'RUNNING')
ON CONFLICT (job_id, fence, seq) DO UPDATE SET payload = excluded.payload
RETURNING seq
-- sqlite: each
INSERT INTO job_output (job_id, fence, seq, payload)
SELECT :id, :fence, :seq, :payload
 WHERE EXISTS (SELECT 1 FROM job WHERE id = :id AND fence = :fence AND state = 'RUNNING')
ON CONFLICT (job_id, fence, seq) DO UPDATE SET payload = excluded.payload
RETURNING seq

-- name: output_drop
-- Throws away some of what attempts before this one had given.
-- postgres
DELETE FROM job_output WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM job_output WHERE job_id = :id AND fence < :fence LIMIT :most))
-- sqlite
DELETE FROM job_output WHERE rowid IN (
  SELECT rowid FROM job_output WHERE job_id = :id AND fence < :fence LIMIT :most)

-- name: output_list
-- A page of what a job gave, if it SUCCEEDED; what other attempts of it left does not count.
SELECT seq, payload FROM job_output
 WHERE job_id = :id
   AND fence = (SELECT fence FROM job WHERE job.id = :id AND job.state = 'SUCCEEDED')
   AND seq > :after
 ORDER BY seq
 LIMIT :most

-- name: output_put
-- Results of attempts that end in this transaction, under their fence.
-- postgres
INSERT INTO job_output (job_id, fence, seq, payload)
SELECT * FROM unnest(:id::uuid[], :fence::bigint[], :seq::bigint[], :payload::bytea[])
-- sqlite
INSERT INTO job_output (job_id, fence, seq, payload)
SELECT id, fence, seq, payload FROM {rows:id fence seq payload*}
