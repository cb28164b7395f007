SELECT state, count(*) FROM worker GROUP BY state ORDER BY state
