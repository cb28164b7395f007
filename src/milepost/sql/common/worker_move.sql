UPDATE worker SET state = :state, move = :move, slots = coalesce(:slots, slots)
 WHERE id = :id AND state <> 'STOPPED'
RETURNING state
