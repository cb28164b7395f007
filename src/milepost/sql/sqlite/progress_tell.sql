-- each: what a running attempt says of itself. One that ended a moment ago may still be heard, while
-- no other attempt has begun and nothing was erased.
INSERT INTO progress (job_id, fence, fraction, message, created_at, updated_at)
SELECT id, fence, :fraction, :message, {now}, {now} FROM job
 WHERE id = :id AND fence = :fence AND move <> 'erase'
ON CONFLICT (job_id) DO UPDATE
  SET fence = excluded.fence, fraction = excluded.fraction, message = excluded.message,
      updated_at = excluded.updated_at
