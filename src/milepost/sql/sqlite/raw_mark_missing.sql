-- What a complete full run did not see, and no later one (H-84): ids grow with time.
UPDATE raw SET missing_in = :root_id
 WHERE pipeline_id = :pipeline_id AND root_id < :root_id AND removed_by IS NULL
   AND missing_in IS NULL
