DELETE FROM signal WHERE job_id = :id
