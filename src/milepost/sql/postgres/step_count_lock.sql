-- Before the runs, as settling does: publishing counts these up.
SELECT 1 FROM step_count c JOIN unnest(:run_id::uuid[], :step::integer[]) AS t (run_id, step)
    ON c.run_id = t.run_id AND c.step >= t.step
 ORDER BY c.run_id, c.step, c.slot
   FOR UPDATE OF c
