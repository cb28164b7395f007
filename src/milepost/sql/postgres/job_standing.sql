SELECT id::text, state FROM job WHERE id = ANY(:id::uuid[])
