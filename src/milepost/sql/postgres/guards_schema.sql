-- Where the store is, and whether a copy of it may be made beside it for a moment.
SELECT relnamespace::regnamespace::text,
       has_database_privilege(current_database(), 'create') AND NOT pg_is_in_recovery(),
       current_setting('server_version')
  FROM pg_class WHERE oid = to_regclass('job')
