INSERT INTO publication (producer_id, fence, run_id, total, first_step)
SELECT t.id, t.fence, t.run_id, t.total,
       (SELECT min(step) FROM staged WHERE producer_id = t.id AND staged.fence = t.fence)
  FROM unnest(:id::uuid[], :fence::bigint[], :run_id::uuid[], :total::bigint[])
       AS t (id, fence, run_id, total)
