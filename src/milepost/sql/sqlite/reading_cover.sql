-- A root that was read whole covers what earlier ones left open within its window.
UPDATE reading SET covered_by = :root_id
 WHERE pipeline_id = :pipeline_id AND closed_at IS NULL AND covered_by IS NULL
   AND root_id <> :root_id AND end_mark <= :end_mark
   AND (:start_mark IS NULL OR start_mark >= :start_mark)
