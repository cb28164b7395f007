-- Names those of the jobs for which a signal has come.
SELECT DISTINCT job_id FROM signal WHERE job_id IN (SELECT value FROM json_each(:id))
