-- each
UPDATE step SET opened = true WHERE run_id = :run_id AND number = :number
