SELECT count(*) FROM quarantine WHERE root_id = :root_id
