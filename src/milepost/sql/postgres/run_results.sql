-- The index has run, step and state first, then the id: a page is read in order and no further.
-- (By `job.id`: a plain `id` would be the text that is answered, and everything would be sorted.)
SELECT id::text, result FROM job
 WHERE run_id = :run_id AND step = :step AND state = 'SUCCEEDED'
   AND id > coalesce(:after::uuid, '00000000-0000-0000-0000-000000000000')
 ORDER BY job.id
 LIMIT :most
