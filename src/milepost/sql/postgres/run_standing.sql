SELECT id::text, state FROM run WHERE id = ANY(:id::uuid[])
