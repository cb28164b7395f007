-- Counts the signals that a job has not used, up to so many.
SELECT count(*) FROM (SELECT 1 FROM signal WHERE job_id = :job_id LIMIT :most) AS kept
