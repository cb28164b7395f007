SELECT fence, at, error FROM failure WHERE job_id = :id ORDER BY fence
