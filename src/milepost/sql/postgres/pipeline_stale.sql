-- Compares and sets: whoever gets a row back is the one who tells. What counts is the watermark, for
-- a sequence the time it last moved; before that, the pipeline's first start.
UPDATE pipeline SET stale_at = {now}
 WHERE stale_at IS NULL
   AND coalesce(CASE measure WHEN 'time' THEN 'epoch'::timestamptz + mark{micros}
                    ELSE last_run_completed_at END, created_at)
       < {now} - fresh_us{micros}
RETURNING name, queue, channel
