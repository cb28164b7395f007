-- What a complete full run did not see (H-84).
UPDATE raw SET missing_in = :root_id
 WHERE pipeline_id = :pipeline_id AND root_id <> :root_id AND removed_by IS NULL
   AND missing_in IS NULL
