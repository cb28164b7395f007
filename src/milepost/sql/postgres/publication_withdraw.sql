-- Runs that are stopping or have ended take back what is not published. What a publisher holds is
-- left to it: it looks at the run before it publishes.
UPDATE publication SET withdrawn = true
 WHERE producer_id = ANY (ARRAY(
         SELECT producer_id FROM publication
          WHERE run_id = ANY (ARRAY(SELECT unnest(:run_id::uuid[])))
            AND published < total AND NOT withdrawn
            FOR UPDATE SKIP LOCKED))
