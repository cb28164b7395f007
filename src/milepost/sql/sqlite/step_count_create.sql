-- each
INSERT INTO step_count (run_id, step, slot)
WITH RECURSIVE numbered (slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM numbered WHERE slot + 1 < :slots)
SELECT :run_id, :number, slot FROM numbered
