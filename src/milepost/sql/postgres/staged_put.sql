-- Outputs of attempts that end in this transaction, under their fence.
INSERT INTO staged (producer_id, fence, seq, step, job_id, codec, payload)
SELECT * FROM unnest(:producer_id::uuid[], :fence::bigint[], :seq::bigint[], :step::integer[],
                     :job_id::uuid[], :codec::text[], :payload::bytea[])
