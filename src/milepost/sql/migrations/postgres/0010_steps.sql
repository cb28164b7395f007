-- Steps pin every option of a job: how long its jobs may take in all, and until when they must start.
ALTER TABLE step ADD COLUMN deadline_us bigint;
ALTER TABLE step ADD COLUMN start_within_us bigint;

-- Births of a step have a counter of their own, so that who publishes does not wait for who settles.
-- It stands in slot -1; the others count ends, and the sum over all is what is open.
INSERT INTO step_count (run_id, step, slot) SELECT run_id, number, -1 FROM step;

CREATE OR REPLACE FUNCTION milepost_count_births() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM new_rows WHERE run_id IS NOT NULL) THEN
    RETURN NULL;
  END IF;
  PERFORM 1
     FROM step_count c
    WHERE (c.run_id, c.step) IN (SELECT n.run_id, n.step FROM new_rows n WHERE n.run_id IS NOT NULL)
      AND c.slot = -1
    ORDER BY c.run_id, c.step
      FOR UPDATE;
  UPDATE step_count c
     SET open = c.open + d.born
    FROM (SELECT run_id, step, count(*) AS born FROM new_rows WHERE run_id IS NOT NULL
           GROUP BY 1, 2) d
   WHERE c.run_id = d.run_id AND c.step = d.step AND c.slot = -1;
  RETURN NULL;
END $$;

-- Without pg_temp at the end, anybody's temporary table would stand in for ours.
DO $do$ BEGIN
  EXECUTE format('ALTER FUNCTION milepost_count_births() SET search_path = %I, pg_temp',
                 current_schema());
END $do$;
