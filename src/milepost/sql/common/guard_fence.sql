-- Lets this attempt's transaction pass, and from its commit on none of an older attempt. No row back
-- means that a newer attempt was here.
INSERT INTO milepost_fence (job_id, fence) VALUES (:id, :fence)
ON CONFLICT (job_id) DO UPDATE SET fence = excluded.fence, at = CURRENT_TIMESTAMP
 WHERE milepost_fence.fence <= excluded.fence
RETURNING fence
