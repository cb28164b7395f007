INSERT INTO signal (id, job_id, at, data) VALUES (:id, :job_id, {now}, :data)
ON CONFLICT (id) DO NOTHING
