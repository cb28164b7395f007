-- The guards of the schema as they stand: triggers, constraints, functions.

-- name: guards_plain
-- postgres
-- Names are then spelled in full, whatever the caller's search_path is.
SELECT set_config('search_path', 'pg_catalog', true)
-- sqlite
-- Nothing to do: there is no search_path.

-- name: guards_schema
-- postgres
-- Where the store is, and whether a copy of it may be made beside it for a moment.
SELECT nspname::text,
       has_database_privilege(current_database(), 'create') AND NOT pg_is_in_recovery(),
       current_setting('server_version')
  FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
 WHERE pg_class.oid = to_regclass('job')
-- sqlite
-- Where the store is; a copy of it is made in memory.
SELECT '', 1, sqlite_version()

-- name: guards_standing
-- postgres
-- Whatever refuses, journals or counts in a schema: what it is, on which table, its name, its text,
-- and whether it is in force. A partition has the triggers of its table; its constraints come with
-- those.
SELECT 'trigger', c.relname::text, t.tgname::text, pg_get_triggerdef(t.oid), t.tgenabled = 'O', c.relispartition
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
 WHERE c.relnamespace = to_regnamespace(quote_ident(:schema)) AND NOT t.tgisinternal
 UNION ALL
SELECT 'constraint', c.relname, k.conname, pg_get_constraintdef(k.oid),
       k.convalidated AND NOT EXISTS (SELECT 1 FROM pg_trigger t
                                       WHERE t.tgconstraint = k.oid AND t.tgenabled <> 'O'), false
  FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
 WHERE c.relnamespace = to_regnamespace(quote_ident(:schema)) AND k.contype IN ('c', 'f', 'p', 'u', 'x')
   AND NOT c.relispartition
 UNION ALL
SELECT 'index', c.relname, i.relname, pg_get_indexdef(x.indexrelid), x.indisvalid AND x.indisready, false
  FROM pg_index x JOIN pg_class c ON c.oid = x.indrelid JOIN pg_class i ON i.oid = x.indexrelid
 WHERE c.relnamespace = to_regnamespace(quote_ident(:schema)) AND x.indisunique AND NOT c.relispartition
 UNION ALL
SELECT 'function', '', p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
       pg_get_functiondef(p.oid), true, false
  FROM pg_proc p
 WHERE p.pronamespace = to_regnamespace(quote_ident(:schema)) AND p.prokind = 'f'
 UNION ALL
SELECT 'rule', c.relname, r.rulename, pg_get_ruledef(r.oid), r.ev_enabled <> 'D', false
  FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
 WHERE c.relnamespace = to_regnamespace(quote_ident(:schema)) AND r.rulename <> '_RETURN'
 UNION ALL
SELECT 'setting', '', s.setting || ' of ' || coalesce(r.rolname, 'every role'), s.setting, true, false
  FROM pg_db_role_setting p
 CROSS JOIN LATERAL unnest(p.setconfig) AS s (setting)
  LEFT JOIN pg_roles r ON r.oid = p.setrole
 WHERE s.setting LIKE 'session_replication_role=%' AND s.setting <> 'session_replication_role=origin'
   AND p.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
-- sqlite
-- Whatever refuses, journals or counts: what it is, on which table, its name, its text, and whether
-- it is in force. A table's text has its checks.
SELECT type, CASE type WHEN 'table' THEN '' ELSE tbl_name END, name, sql, 1, 0
  FROM sqlite_master
 WHERE (type IN ('trigger', 'table') OR (type = 'index' AND sql LIKE 'CREATE UNIQUE %'))
   AND :schema = ''
