-- each
UPDATE reading SET closed_at = {now}
 WHERE root_id = :root_id AND ordinal = :ordinal AND closed_at IS NULL
