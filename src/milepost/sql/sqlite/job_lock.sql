SELECT state, cancel_reason, run_id, step FROM job WHERE id = :id
