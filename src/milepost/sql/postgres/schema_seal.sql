-- What migrations left behind depends on nobody's session: each function looks into its own schema, and
-- with pg_temp at the end nobody's temporary table stands in for ours. These two name it themselves, or
-- need none: they run for every row, and a SET clause costs a dozen microseconds a call. Only functions
-- that read, with the rights of whoever asks, are anybody's to call; a trigger fires without such a right.
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
