-- Whatever refuses, journals or counts: what it is, on which table, its name, its text, and whether it
-- is in force. A table's text has its checks.
SELECT type, CASE type WHEN 'table' THEN '' ELSE tbl_name END, name, sql, 1, 0
  FROM sqlite_master
 WHERE (type IN ('trigger', 'table') OR (type = 'index' AND sql LIKE 'CREATE UNIQUE %'))
   AND :schema = ''
