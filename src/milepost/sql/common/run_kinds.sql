SELECT kind, state, count(*) FROM run GROUP BY kind, state ORDER BY kind, state
