-- each
INSERT INTO failure (job_id, fence, at, error) VALUES (:id, :fence, {now}, :error)
