-- What running attempts say of themselves. One that ended a moment ago may still be heard, while no
-- other attempt has begun and nothing was erased.
WITH told AS MATERIALIZED (
  SELECT job.id, job.fence, t.fraction, t.message
    FROM unnest(:id::uuid[], :fence::bigint[], :fraction::float8[], :message::text[])
         AS t (id, fence, fraction, message)
    JOIN job ON job.id = t.id AND job.fence = t.fence AND job.move <> 'erase'
   ORDER BY job.id
     FOR NO KEY UPDATE OF job
)
INSERT INTO progress (job_id, fence, fraction, message, created_at, updated_at)
SELECT id, fence, fraction, message, {now}, {now} FROM told
ON CONFLICT (job_id) DO UPDATE
  SET fence = excluded.fence, fraction = excluded.fraction, message = excluded.message,
      updated_at = excluded.updated_at
