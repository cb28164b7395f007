-- Throws away some of what attempts before this one had given.
DELETE FROM job_output WHERE rowid IN (
  SELECT rowid FROM job_output WHERE job_id = :id AND fence < :fence LIMIT :most)
