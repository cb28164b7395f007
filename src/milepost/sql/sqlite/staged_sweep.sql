-- Throws away what no attempt will publish: left by failed, lost or withdrawn ones.
DELETE FROM staged WHERE rowid IN (
  SELECT s.rowid FROM staged s
   WHERE NOT EXISTS (SELECT 1 FROM job
                      WHERE job.id = s.producer_id AND job.fence = s.fence AND job.state = 'RUNNING')
     AND NOT EXISTS (SELECT 1 FROM publication p
                      WHERE p.producer_id = s.producer_id AND p.fence = s.fence AND NOT p.withdrawn)
   LIMIT :most)
