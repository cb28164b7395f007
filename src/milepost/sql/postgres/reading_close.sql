UPDATE reading SET closed_at = {now}
  FROM unnest(:root_id::uuid[], :ordinal::integer[]) AS i (root_id, ordinal)
 WHERE reading.root_id = i.root_id AND reading.ordinal = i.ordinal AND closed_at IS NULL
