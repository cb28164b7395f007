UPDATE channel SET stopped_at = NULL, stopped_by = NULL, reason = NULL
 WHERE name = :name AND stopped_at IS NOT NULL
RETURNING name
