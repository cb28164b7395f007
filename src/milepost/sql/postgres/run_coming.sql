-- Runs with outputs whose producer has ended and that are not jobs yet, and the first step they are
-- for.
SELECT run_id::text, min(first_step) FROM publication
 WHERE run_id = ANY (ARRAY(SELECT unnest(:id::uuid[]))) AND published < total AND NOT withdrawn
 GROUP BY run_id
