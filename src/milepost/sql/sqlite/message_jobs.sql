-- The jobs of a run in their order, and about how large each is in a message.
SELECT id, 400 + coalesce(length(result), 0) + coalesce(length(CAST(error AS BLOB)), 0)
  FROM job
 WHERE run_id = :id
 ORDER BY step, ordinal, job.id
 LIMIT :most
