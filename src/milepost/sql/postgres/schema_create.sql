-- Asked first: whoever may not create one may still use the one that was made for it.
DO $$ BEGIN
  IF to_regnamespace('{schema}') IS NULL THEN
    CREATE SCHEMA {schema};
  END IF;
END $$
