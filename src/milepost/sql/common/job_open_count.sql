-- Whether anything that a worker or the clock could still move is left.
SELECT count(*) FROM (
  SELECT 1 FROM job
   WHERE state IN ('WAITING', 'READY', 'QUEUED', 'RUNNING', 'RETRYING', 'GATED')
   LIMIT 1) AS anything
