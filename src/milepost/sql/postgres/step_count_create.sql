INSERT INTO step_count (run_id, step, slot)
SELECT :run_id, :number, slot FROM generate_series(0, :slots - 1) AS slot
