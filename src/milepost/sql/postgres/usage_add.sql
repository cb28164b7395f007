INSERT INTO usage (job_id, fence, name, amount)
SELECT i.id, i.fence, i.name, i.amount
  FROM unnest(:id::uuid[], :fence::bigint[], :name::text[], :amount::double precision[])
       AS i (id, fence, name, amount)
