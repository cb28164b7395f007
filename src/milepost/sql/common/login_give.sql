UPDATE source_budget SET logins = logins + 1, session = :session, login_until = NULL
 WHERE name = :name AND logins = :seen
RETURNING logins
