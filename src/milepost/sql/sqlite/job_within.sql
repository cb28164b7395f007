SELECT id FROM job WHERE id BETWEEN :low AND :high ORDER BY id LIMIT :most
