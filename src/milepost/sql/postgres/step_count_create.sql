-- One for births, in slot -1, and as many for ends as the step says.
INSERT INTO step_count (run_id, step, slot)
SELECT :run_id, t.number, slot
  FROM unnest(:number::integer[], :slots::integer[]) AS t (number, slots)
 CROSS JOIN generate_series(-1, t.slots - 1) AS slot
