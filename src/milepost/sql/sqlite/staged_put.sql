-- Outputs of attempts that end in this transaction, under their fence.
INSERT INTO staged (producer_id, fence, seq, step, job_id, codec, payload)
SELECT producer_id, fence, seq, step, job_id, codec, payload
  FROM {rows:producer_id fence seq step job_id codec payload*}
