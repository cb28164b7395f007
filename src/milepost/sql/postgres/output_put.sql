-- Results of attempts that end in this transaction, under their fence.
INSERT INTO job_output (job_id, fence, seq, payload)
SELECT * FROM unnest(:id::uuid[], :fence::bigint[], :seq::bigint[], :payload::bytea[])
