-- The store itself: clock, schema, migrations.

-- name: clock_advance
UPDATE clock SET offset_us = offset_us + :by_us

-- name: clock_now
SELECT {now}

-- name: store_identity
-- postgres
-- Which database this is, however it was reached: the cluster's own number, and the name in it.
SELECT system_identifier || ' ' || current_database() FROM pg_control_system()
-- sqlite
-- Which database this is: the file that was opened.
SELECT file FROM pragma_database_list WHERE name = 'main'

-- name: schema_create
-- postgres
-- Asked first: a role that may not create one may still use the one that was made for it.
DO $$ BEGIN
  IF to_regnamespace('{schema}') IS NULL THEN
    CREATE SCHEMA {schema};
  END IF;
END $$
-- sqlite
-- A file is a schema of its own.
SELECT 1

-- name: schema_enter
-- postgres
-- For this transaction: migrations say plain names, and write this one into what they leave behind.
SET LOCAL search_path TO {schema}, pg_temp
-- sqlite
-- A file is a schema of its own.
SELECT 1

-- name: schema_seal
-- postgres
-- What migrations left behind depends on nobody's session: each function looks into its own schema,
-- and with pg_temp at the end nobody's temporary table stands in for ours. These two name it
-- themselves, or need none: they run for every row, and a SET clause costs a dozen microseconds a
-- call. Only functions that read, with the caller's rights, are anybody's to call; a trigger
-- fires without such a right.
DO $$
DECLARE
  made record;
BEGIN
  FOR made IN
    SELECT oid::regprocedure AS name, proname, prosecdef, provolatile FROM pg_proc
     WHERE pronamespace = '{schema}'::regnamespace AND proname ~ '^milepost_'
  LOOP
    IF made.proname NOT IN ('milepost_now', 'milepost_json') THEN
      EXECUTE format('ALTER FUNCTION %s SET search_path = {schema}, pg_temp', made.name);
    END IF;
    IF made.prosecdef OR made.provolatile = 'v' THEN
      EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', made.name);
    END IF;
  END LOOP;
END $$
-- sqlite
-- A file is a schema of its own.
SELECT 1

-- name: migration_add
INSERT INTO migration (number, name, checksum) VALUES (:number, :name, :checksum)

-- name: migration_exists
-- Whether there is a store: a program's own table of that name has no checksums.
-- postgres
SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('migration') AND attname = 'checksum'
-- sqlite
SELECT 1 FROM pragma_table_info('migration') WHERE name = 'checksum'

-- name: migration_list
SELECT number, name, checksum FROM migration ORDER BY number

-- name: migration_lock
-- postgres
-- Two runners wait for each other; the lock goes with the transaction.
SELECT pg_advisory_xact_lock(7234511060511)
-- sqlite
-- The runner's own BEGIN IMMEDIATE is the lock.
SELECT 1

-- name: migration_table
-- postgres
CREATE TABLE migration (
  number integer PRIMARY KEY,
  name text NOT NULL,
  checksum text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
-- sqlite
CREATE TABLE migration (
  number INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  checksum TEXT NOT NULL,
  applied_at INTEGER NOT NULL
    DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)
) STRICT

-- name: table_list
-- postgres
-- Tables that people made, wherever in the database; those of extensions come with the server.
SELECT CASE nspname WHEN 'public' THEN relname ELSE nspname || '.' || relname END
  FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
 WHERE relkind IN ('r', 'p') AND NOT relispartition
   AND nspname !~ '^pg_' AND nspname <> 'information_schema'
   AND NOT EXISTS (SELECT 1 FROM pg_depend
                    WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid AND deptype = 'e')
 ORDER BY 1
-- sqlite
SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name
