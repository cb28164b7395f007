DELETE FROM durable_step WHERE job_id = :id
