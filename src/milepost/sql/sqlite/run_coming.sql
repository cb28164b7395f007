-- each: whether a run has outputs whose producer has ended and that are not jobs yet, and the first
-- step they are for.
SELECT run_id, min(first_step) FROM publication
 WHERE run_id = :id AND published < total AND NOT withdrawn
 GROUP BY run_id
