SELECT id::text FROM job WHERE id BETWEEN :low::uuid AND :high::uuid ORDER BY job.id LIMIT :most
