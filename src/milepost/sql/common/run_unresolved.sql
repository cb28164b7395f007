SELECT count(*) FROM quarantine WHERE root_id = :root_id AND resolved_at IS NULL
