-- From where the last ones ended: below stand only dead entries, a million of them by and by.
DELETE FROM staged USING unnest(:producer_id::uuid[], :fence::bigint[], :low::bigint[], :high::bigint[])
       AS t (producer_id, fence, low, high)
 WHERE staged.producer_id = t.producer_id AND staged.fence = t.fence AND staged.seq >= t.low
   AND staged.seq < t.high
