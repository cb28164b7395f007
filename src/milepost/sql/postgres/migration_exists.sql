SELECT 1 WHERE to_regclass('migration') IS NOT NULL
