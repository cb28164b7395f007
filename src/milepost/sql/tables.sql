-- Whose a target table is.

-- name: table_columns
-- The columns and their types as the database tells them; last, which database that is.
-- postgres
SELECT attname, format_type(atttypid, atttypmod), 'postgres' FROM pg_attribute
 WHERE attrelid = to_regclass(quote_ident(:table)) AND attnum > 0 AND NOT attisdropped
-- sqlite
SELECT lower(name), upper(type), 'sqlite' FROM pragma_table_info(:table)

-- name: table_users
-- What keeps a column from being changed.
-- postgres
SELECT DISTINCT 'view ' || pg_rewrite.ev_class::regclass::text
  FROM pg_depend
  JOIN pg_rewrite ON pg_rewrite.oid = pg_depend.objid
  JOIN pg_attribute ON pg_attribute.attrelid = pg_depend.refobjid
                   AND pg_attribute.attnum = pg_depend.refobjsubid
 WHERE pg_depend.classid = 'pg_rewrite'::regclass AND pg_depend.refclassid = 'pg_class'::regclass
   AND pg_attribute.attrelid = to_regclass(quote_ident(:table)) AND pg_attribute.attname = :column
-- sqlite
-- Which column it is does not matter: SQLite reads all of them when one is dropped. A table's name
-- may be a word of the engine's own triggers; what reads or writes a table names it after a verb.
SELECT type || ' ' || name FROM sqlite_schema
 WHERE sql IS NOT NULL AND :column <> ''
   AND (type IN ('index', 'trigger') AND lower(tbl_name) = lower(:table)
        OR type IN ('view', 'trigger')
           AND EXISTS (SELECT 1 FROM json_each('["from", "join", "into", "update"]') AS verb
                        WHERE replace(replace(lower(sql), char(10), ' '), '"', '') || ' '
                              GLOB '*' || verb.value || ' ' || lower(:table) || '[^a-z0-9_]*'))

-- name: table_last
-- Who held a table last. Names that differ in case alone are one: SQLite knows no difference.
SELECT t.pipeline_id, t.name, p.name, t.filled, t.released_at
  FROM pipeline_table AS t LEFT JOIN pipeline AS p ON p.id = t.pipeline_id
 WHERE lower(t.name) = lower(:table)
 ORDER BY t.id DESC
 LIMIT 1

-- name: table_claim
-- Of two pipelines that claim a table at once the index lets one have it; the other gets no row.
INSERT INTO pipeline_table (pipeline_id, name, filled, claimed_at)
VALUES (:pipeline_id, :table, :filled, {now})
ON CONFLICT DO NOTHING
RETURNING id

-- name: table_made
-- A table begins empty: that is all there is if its pipeline has landed nothing.
UPDATE pipeline_table
   SET filled = NOT EXISTS (SELECT 1 FROM raw WHERE pipeline_id = :pipeline_id AND removed_by IS NULL)
 WHERE lower(name) = lower(:table) AND pipeline_id = :pipeline_id AND released_at IS NULL
RETURNING filled

-- name: table_fill
UPDATE pipeline_table SET filled = true
 WHERE lower(name) = lower(:table) AND pipeline_id = :pipeline_id AND released_at IS NULL
   AND NOT filled

-- name: table_release
UPDATE pipeline_table
   SET released_at = {now}, actor = :actor, reason = :reason
 WHERE lower(name) = lower(:table) AND pipeline_id = :pipeline_id AND released_at IS NULL
RETURNING id

-- name: table_give
-- A table that this store has never held is free for its pipelines from now on.
INSERT INTO pipeline_table (name, claimed_at, released_at, actor, reason)
VALUES (:table, {now}, {now}, :actor, :reason)

-- name: table_holdings
SELECT t.name, p.name, t.claimed_at, t.released_at, t.actor, t.reason
  FROM pipeline_table AS t LEFT JOIN pipeline AS p ON p.id = t.pipeline_id
 ORDER BY lower(t.name), t.id
