-- A root that was read whole, and ends within what an earlier one left open: the rest stays open.
UPDATE reading SET start_mark = :end_mark
 WHERE pipeline_id = :pipeline_id AND closed_at IS NULL AND covered_by IS NULL
   AND root_id <> CAST(:root_id AS uuid) AND start_mark < :end_mark AND end_mark > :end_mark
   AND (CAST(:start_mark AS bigint) IS NULL OR start_mark >= :start_mark)
