-- Where the store is; a copy of it is made in memory.
SELECT '', 1, sqlite_version()
