-- each: a result of a running attempt, one of several. No row back means the lease was lost.
INSERT INTO job_output (job_id, fence, seq, payload)
SELECT :id, :fence, :seq, :payload
 WHERE EXISTS (SELECT 1 FROM job WHERE id = :id AND fence = :fence AND state = 'RUNNING')
ON CONFLICT (job_id, fence, seq) DO UPDATE SET payload = excluded.payload
RETURNING seq
