SELECT logins, session FROM source_budget WHERE name = :name
