-- From where the last ones ended: below stand only dead entries, a million of them by and by.
-- (OFFSET 0 keeps the planner from reading all that is staged into a hash.)
DELETE FROM staged WHERE ctid = ANY (ARRAY(
  SELECT found.ctid
    FROM unnest(:producer_id::uuid[], :fence::bigint[], :low::bigint[], :high::bigint[])
         AS t (producer_id, fence, low, high)
   CROSS JOIN LATERAL (
         SELECT s.ctid FROM staged s
          WHERE s.producer_id = t.producer_id AND s.fence = t.fence AND s.seq >= t.low
            AND s.seq < t.high
         OFFSET 0) found))
