-- The job's row is locked by now: its fence tells which claims come after the signal.
INSERT INTO signal (id, job_id, at, data, fence)
SELECT :id, id, {now}, :data, fence FROM job WHERE id = :job_id
ON CONFLICT (id) DO NOTHING
