SELECT max(0, blocked_until - {now}) FROM source_budget WHERE name = :name
