SELECT state, cancel_reason, run_id::text, step FROM job WHERE id = :id FOR UPDATE
