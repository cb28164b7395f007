SELECT count(*), coalesce(sum(pending), 0) FROM page WHERE root_id = :root_id AND pending > 0
