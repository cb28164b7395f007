-- Results of attempts that end in this transaction, under their fence.
INSERT INTO job_output (job_id, fence, seq, payload)
SELECT id, fence, seq, payload FROM {rows:id fence seq payload*}
