-- Throws away what nobody will publish: left by failed or lost attempts, or by deleted runs. What a
-- stopped run took back is kept with it: a run that resumes it publishes the rest.
DELETE FROM staged WHERE rowid IN (
  SELECT s.rowid FROM staged s
   WHERE NOT EXISTS (SELECT 1 FROM job
                      WHERE job.id = s.producer_id AND job.fence = s.fence AND job.state = 'RUNNING')
     AND NOT EXISTS (SELECT 1 FROM publication p
                      WHERE p.producer_id = s.producer_id AND p.fence = s.fence)
   LIMIT :most)
