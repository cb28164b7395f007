SELECT count(*) FROM page WHERE root_id = :root_id AND ordinal = :ordinal AND records = 0
