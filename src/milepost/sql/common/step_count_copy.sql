INSERT INTO step_count (run_id, step, slot)
SELECT :new_id, step, slot FROM step_count WHERE run_id = :old_id
