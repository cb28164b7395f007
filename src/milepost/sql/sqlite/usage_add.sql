-- each
INSERT INTO usage (job_id, fence, name, amount) VALUES (:id, :fence, :name, :amount)
