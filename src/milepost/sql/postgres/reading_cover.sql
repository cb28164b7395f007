-- A root that was read whole covers what earlier ones left open within its window.
UPDATE reading SET covered_by = CAST(:root_id AS uuid)
 WHERE pipeline_id = :pipeline_id AND closed_at IS NULL AND covered_by IS NULL
   AND root_id <> CAST(:root_id AS uuid) AND end_mark <= :end_mark
   AND (CAST(:start_mark AS bigint) IS NULL OR start_mark >= :start_mark)
