SELECT coalesce(max(ordinal), -1) FROM reading WHERE root_id = :root_id
