SELECT id::text FROM run WHERE id BETWEEN :low::uuid AND :high::uuid ORDER BY run.id LIMIT :most
