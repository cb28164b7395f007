SELECT 1 WHERE :keep_us::bigint < 0 AND :most::bigint < 0
