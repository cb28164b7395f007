-- A run that is stopping or has ended takes back what is not published. What a publisher holds is
-- left to it: it looks at the run before it publishes.
UPDATE publication SET withdrawn = true
 WHERE producer_id IN (SELECT producer_id FROM publication
                        WHERE run_id = :run_id AND published < total AND NOT withdrawn
                          FOR UPDATE SKIP LOCKED)
