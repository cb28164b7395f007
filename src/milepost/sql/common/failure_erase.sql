DELETE FROM failure WHERE job_id = :id
