-- each: nothing to do, there is one writer.
SELECT 1 WHERE :run_id IS NULL AND :step IS NULL
