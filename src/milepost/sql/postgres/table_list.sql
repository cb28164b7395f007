-- Tables that people made, wherever in the database; those of extensions come with the server.
SELECT CASE nspname WHEN 'public' THEN relname ELSE nspname || '.' || relname END
  FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
 WHERE relkind IN ('r', 'p') AND NOT relispartition
   AND nspname !~ '^pg_' AND nspname <> 'information_schema'
   AND NOT EXISTS (SELECT 1 FROM pg_depend
                    WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid AND deptype = 'e')
 ORDER BY 1
