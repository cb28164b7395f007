-- each
INSERT INTO reading (root_id, ordinal, pipeline_id, low, high, start_mark, end_mark)
VALUES (:root_id, :ordinal, :pipeline_id, :low, :high, :start_mark, :end_mark)
