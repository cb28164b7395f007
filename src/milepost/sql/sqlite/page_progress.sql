-- each: moves a cursor on from the page it was read at. No row back: somebody else has moved it.
INSERT INTO progress (job_id, fence, fraction, next_offset, records, position, saves, done,
                      created_at, updated_at)
VALUES (:id, :fence, :fraction, :records, :records, :position, :number + 1, :done, {now}, {now})
ON CONFLICT (job_id) DO UPDATE
  SET fence = excluded.fence, fraction = excluded.fraction,
      next_offset = progress.next_offset + excluded.next_offset,
      records = progress.records + excluded.records, position = excluded.position,
      saves = excluded.saves, done = excluded.done, updated_at = excluded.updated_at
 WHERE progress.saves = excluded.saves - 1 AND NOT progress.done
RETURNING job_id
