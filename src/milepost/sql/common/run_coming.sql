-- Outputs whose producer has ended and that are not jobs yet, and the first step they are for.
SELECT count(*), min(first_step) FROM publication
 WHERE run_id = :id AND published < total AND NOT withdrawn
