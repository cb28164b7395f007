SELECT id::text, state, version, current_step, ending FROM run
 WHERE id = ANY (ARRAY(SELECT unnest(:id::uuid[])))
