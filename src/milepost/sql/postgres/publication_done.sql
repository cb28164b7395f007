UPDATE publication SET published = t.high
  FROM unnest(:producer_id::uuid[], :high::bigint[]) AS t (producer_id, high)
 WHERE publication.producer_id = t.producer_id
