-- Who could not log in steps back: the next may try at once. A turn that is another's stays.
UPDATE source_budget SET login_until = NULL
 WHERE name = :name AND login_until = :until
