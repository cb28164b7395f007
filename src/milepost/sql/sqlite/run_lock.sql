SELECT state, version, current_step, ending, cause FROM run WHERE id = :id
