-- What is fresh again is told again when it grows old: one pipeline, or all of them.
UPDATE pipeline SET stale_at = NULL
 WHERE stale_at IS NOT NULL AND id = coalesce(CAST(:pipeline_id AS integer), id)
   AND (fresh_us IS NULL
        OR coalesce(CASE measure WHEN 'time' THEN 'epoch'::timestamptz + mark{micros}
                    ELSE last_run_completed_at END, created_at)
           >= {now} - fresh_us{micros})
RETURNING id
