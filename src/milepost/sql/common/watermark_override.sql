UPDATE pipeline SET mark = :mark, move = 'override', actor = :actor, reason = :reason
 WHERE id = :pipeline_id
