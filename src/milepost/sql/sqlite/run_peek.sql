-- each
SELECT id, state, version, current_step, ending FROM run WHERE id = :id
