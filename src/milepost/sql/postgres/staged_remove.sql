DELETE FROM staged USING unnest(:producer_id::uuid[], :fence::bigint[], :high::bigint[])
       AS t (producer_id, fence, high)
 WHERE staged.producer_id = t.producer_id AND staged.fence = t.fence AND staged.seq < t.high
