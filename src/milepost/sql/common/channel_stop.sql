UPDATE channel SET stopped_at = {now}, stopped_by = :actor, reason = :reason
 WHERE name = :name AND stopped_at IS NULL
RETURNING name
