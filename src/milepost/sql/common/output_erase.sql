DELETE FROM job_output WHERE job_id = :id
