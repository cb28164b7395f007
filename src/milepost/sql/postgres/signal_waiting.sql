-- Names those of the jobs for which a signal has come.
SELECT DISTINCT job_id::text FROM signal WHERE job_id = ANY(:id::uuid[])
