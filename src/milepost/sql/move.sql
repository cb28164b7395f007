-- A whole store on its way from a file to a server.

-- name: move_away
-- Whether this store was moved away, or is about to be.
-- postgres
-- A server is moved to, and never from.
-- sqlite
SELECT id, source, target, place, actor, begun_at, finished_at FROM store_move

-- name: move_arrived
-- Whether a move has arrived here. Asked while the lock of migrations is held: nothing is under way.
SELECT 1 FROM store_move WHERE id = :id

-- name: move_note
INSERT INTO store_move (id, source, target, place, actor, begun_at)
VALUES (:id, :source, :target, :place, :actor, {now})

-- name: move_finish
UPDATE store_move SET finished_at = {now} WHERE id = :id

-- name: move_forget
DELETE FROM store_move WHERE id = :id AND finished_at IS NULL

-- name: move_triggers
-- The triggers that keep a store that was moved away as it is.
-- postgres
-- A server is moved to, and never from.
-- sqlite
SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name LIKE 'moved\_away\_%' ESCAPE '\'

-- name: move_columns
-- Every column of every table; on PostgreSQL with the sequence that numbers it.
-- postgres
SELECT relname, attname, typname,
       coalesce(pg_get_serial_sequence(attrelid::regclass::text, attname),
                (SELECT refobjid::regclass::text
                   FROM pg_attrdef JOIN pg_depend ON classid = 'pg_attrdef'::regclass AND objid = pg_attrdef.oid
                   JOIN pg_class AS s ON s.oid = refobjid AND s.relkind = 'S'
                  WHERE adrelid = attrelid AND adnum = attnum AND refclassid = 'pg_class'::regclass))
  FROM pg_class
  JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
  JOIN pg_type ON pg_type.oid = atttypid
 WHERE relnamespace = '{schema}'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
 ORDER BY relname, attnum
-- sqlite
SELECT t.name, c.name, c.type, NULL
  FROM sqlite_schema AS t JOIN pragma_table_info(t.name) AS c
 WHERE t.type = 'table'
 ORDER BY t.name, c.cid

-- name: move_references
-- Which table refers to which: that one is filled first.
-- postgres
SELECT DISTINCT c.relname, r.relname
  FROM pg_constraint
  JOIN pg_class AS c ON c.oid = conrelid
  JOIN pg_class AS r ON r.oid = confrelid
 WHERE contype = 'f' AND c.relnamespace = '{schema}'::regnamespace
-- sqlite
-- The rows come from here, whatever their order.

-- name: move_calm
-- For this transaction: nobody should use a store that is about to be filled, so nobody is waited for long; and
-- it may take as long as it takes, whatever a server or role say.
-- postgres
SELECT set_config(name, CASE name WHEN 'lock_timeout' THEN '10s' ELSE '0' END, true) FROM pg_settings
 WHERE name IN ('lock_timeout', 'statement_timeout', 'transaction_timeout')
-- sqlite
-- The wait for a file is limited by its connection.

-- name: move_path
-- For this transaction: setting up a store has entered its schema, and pipelines keep their tables elsewhere.
-- postgres
SET LOCAL search_path TO DEFAULT
-- sqlite
-- A file is a schema of its own.

-- name: move_week
-- postgres
-- The partition of the journal for the week that begins so many days after 1970-01-01.
SELECT milepost_make_week('epoch'::timestamp + :day::integer * interval '1 day')
-- sqlite
-- There are no partitions here.
SELECT 1 WHERE :day < 0

-- name: move_spans
-- The first digits of the ids in the journal: three days of the time that an id begins with.
-- postgres
-- A server is moved to, and never from.
-- sqlite
-- From one to the next by the index, however many entries there are.
WITH RECURSIVE span (digits) AS (
  SELECT (SELECT substr(min(subject_id), 1, 5) FROM journal)
   UNION ALL
  SELECT (SELECT substr(min(subject_id), 1, 5) FROM journal WHERE subject_id > span.digits || 'g')
    FROM span WHERE span.digits IS NOT NULL
)
SELECT digits FROM span WHERE digits IS NOT NULL

-- name: move_disarm
-- postgres
-- The tables' owner may switch triggers off, and with the transaction that is undone. Foreign keys and
-- constraints go on.
DO $$
DECLARE
  guarded regclass;
BEGIN
  FOR guarded IN
    SELECT DISTINCT tgrelid::regclass FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
     WHERE NOT tgisinternal AND relkind IN ('r', 'p') AND relnamespace = '{schema}'::regnamespace
  LOOP
    EXECUTE format('ALTER TABLE %s DISABLE TRIGGER USER', guarded);
  END LOOP;
END $$
-- sqlite
-- Nothing is written here but by the store's own operations.

-- name: move_arm
-- postgres
DO $$
DECLARE
  guarded regclass;
BEGIN
  FOR guarded IN
    SELECT DISTINCT tgrelid::regclass FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
     WHERE NOT tgisinternal AND relkind IN ('r', 'p') AND relnamespace = '{schema}'::regnamespace
  LOOP
    EXECUTE format('ALTER TABLE %s ENABLE TRIGGER USER', guarded);
  END LOOP;
END $$
-- sqlite
-- Nothing is written here but by the store's own operations.

-- name: move_complete
-- postgres
-- New jobs of a step are counted in a row of their own here, so that who publishes does not wait for who settles.
INSERT INTO step_count (run_id, step, slot) SELECT run_id, number, -1 FROM step ON CONFLICT DO NOTHING
-- sqlite
-- One writer waits for nobody.

-- name: move_target
-- The columns of a pipeline's table, as it was made.
-- postgres
SELECT attname, format_type(atttypid, atttypmod), 0 FROM pg_attribute
 WHERE attrelid = to_regclass(quote_ident(:table)) AND attnum > 0 AND NOT attisdropped
-- sqlite
SELECT name, upper(type), pk FROM pragma_table_info(:table)
