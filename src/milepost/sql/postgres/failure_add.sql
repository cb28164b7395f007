INSERT INTO failure (job_id, fence, at, error)
SELECT i.id, i.fence, {now}, i.error
  FROM unnest(:id::uuid[], :fence::bigint[], :error::text[]) AS i (id, fence, error)
