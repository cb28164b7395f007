-- Says that a held run was added to now.
UPDATE step SET filled_at = {now} WHERE run_id = :run_id AND number = :number
