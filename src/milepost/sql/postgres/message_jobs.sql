-- The jobs of a run in their order, and about how large each is in a message.
SELECT id::text, 400 + coalesce(length(result), 0) + coalesce(octet_length(error), 0)
  FROM job
 WHERE run_id = :id AND (state = 'RUNNING' OR state <> 'RUNNING')
 ORDER BY step, ordinal, job.id
 LIMIT :most
