-- Moves cursors on, each from the page it was read at. No row back: somebody else has moved it.
INSERT INTO progress (job_id, fence, fraction, next_offset, records, position, saves, done,
                      created_at, updated_at)
SELECT i.id, i.fence, i.fraction, i.records, i.records, i.position, i.number + 1, i.done, {now}, {now}
  FROM unnest(:id::uuid[], :fence::bigint[], :fraction::float8[], :records::bigint[],
              :position::bytea[], :number::bigint[], :done::boolean[])
       AS i (id, fence, fraction, records, position, number, done)
 ORDER BY i.id
ON CONFLICT (job_id) DO UPDATE
  SET fence = excluded.fence, fraction = excluded.fraction,
      next_offset = progress.next_offset + excluded.next_offset,
      records = progress.records + excluded.records, position = excluded.position,
      saves = excluded.saves, done = excluded.done, updated_at = excluded.updated_at
 WHERE progress.saves = excluded.saves - 1 AND NOT progress.done
RETURNING job_id::text
