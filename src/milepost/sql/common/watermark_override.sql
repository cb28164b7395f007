UPDATE pipeline SET mark = :mark, version = version + 1, move = 'override', actor = :actor, reason = :reason
 WHERE id = :pipeline_id
