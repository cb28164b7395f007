-- each: what an attempt took before it went to sleep is used up.
DELETE FROM signal WHERE job_id = :id AND taken_by = :fence
