-- The moves after one, and what went before them without its details: who counts attempts needs it.
-- The page ends before the first move that stands behind more than :most_bytes of details; how many
-- there were before the cut stands in the last column.
WITH listed AS (
SELECT seq, coalesce(length(detail), 0) AS size
  FROM journal
 WHERE subject_id = :id AND machine = :machine AND seq > :after
 ORDER BY seq
 LIMIT :most
), fitting AS (
SELECT seq, sum(size) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - size AS ahead FROM listed
)
SELECT seq, move, from_state, to_state, fence, at, actor,
       CASE WHEN seq > :after OR move = 'snapshot' THEN detail END,
       (SELECT count(*) FROM listed)
  FROM journal
 WHERE subject_id = :id AND machine = :machine
   AND seq <= (SELECT max(seq) FROM fitting WHERE ahead < :most_bytes)
 ORDER BY seq
