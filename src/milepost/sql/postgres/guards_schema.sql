-- Where the store is, and whether a copy of it may be made beside it for a moment.
SELECT nspname::text,
       has_database_privilege(current_database(), 'create') AND NOT pg_is_in_recovery(),
       current_setting('server_version')
  FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
 WHERE pg_class.oid = to_regclass('job')
