-- A partition that is handed over has nothing left to read. No row back: it had ended before.
UPDATE progress SET done = true, updated_at = {now}
 WHERE job_id = :id AND NOT done
RETURNING saves
