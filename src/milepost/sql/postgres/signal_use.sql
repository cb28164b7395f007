-- What an attempt took before it went to sleep is used up.
DELETE FROM signal USING unnest(:id::uuid[], :fence::bigint[]) AS i (id, fence)
 WHERE signal.job_id = i.id AND signal.taken_by = i.fence
