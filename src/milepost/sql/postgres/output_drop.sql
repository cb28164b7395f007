-- Throws away some of what attempts before this one had given.
DELETE FROM job_output WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM job_output WHERE job_id = :id AND fence < :fence LIMIT :most))
