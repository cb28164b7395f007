-- Moves a cursor on from the save it was read at. No row back: the lease was lost, or somebody else
-- has saved meanwhile. The job's row is held until the commit.
WITH held AS MATERIALIZED (
  SELECT id, fence FROM job WHERE id = :id AND fence = :fence AND state = 'RUNNING'
     FOR NO KEY UPDATE
)
INSERT INTO progress (job_id, fence, position, saves, created_at, updated_at)
SELECT id, fence, :position::bytea, 1, {now}, {now} FROM held
ON CONFLICT (job_id) DO UPDATE
  SET fence = excluded.fence, position = excluded.position, saves = progress.saves + 1,
      updated_at = excluded.updated_at
 WHERE progress.saves = :saves
RETURNING saves
