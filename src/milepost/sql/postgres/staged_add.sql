-- Outputs of a running attempt, invisible until it succeeds. No row back means the lease was lost.
INSERT INTO staged (producer_id, fence, seq, step, job_id, codec, payload)
SELECT :producer_id, :fence, t.seq, t.step, t.job_id, :codec, t.payload
  FROM unnest(:seq::bigint[], :step::integer[], :job_id::uuid[], :payload::bytea[])
       AS t (seq, step, job_id, payload)
 WHERE EXISTS (SELECT 1 FROM job WHERE id = :producer_id AND fence = :fence AND state = 'RUNNING')
ON CONFLICT (producer_id, fence, seq)
  DO UPDATE SET step = excluded.step, codec = excluded.codec, payload = excluded.payload
RETURNING seq
