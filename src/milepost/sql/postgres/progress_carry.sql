-- A partition that is created again goes on where the one before it came to.
INSERT INTO progress_carried (run_id) VALUES (:run_id)
