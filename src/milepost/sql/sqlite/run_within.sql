SELECT id FROM run WHERE id BETWEEN :low AND :high ORDER BY id LIMIT :most
