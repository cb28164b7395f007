SELECT id::text FROM job WHERE run_id = ANY (:id::uuid[]) LIMIT :most
