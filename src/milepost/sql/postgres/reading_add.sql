INSERT INTO reading (root_id, ordinal, pipeline_id, low, high, start_mark, end_mark)
SELECT :root_id::uuid, i.ordinal, :pipeline_id, i.low, i.high, :start_mark, :end_mark
  FROM unnest(:ordinal::integer[], :low::text[], :high::text[]) AS i (ordinal, low, high)
