SELECT {text:id}, fence FROM job WHERE worker_id = :worker_id AND state = 'RUNNING' ORDER BY id
