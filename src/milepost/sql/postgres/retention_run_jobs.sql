SELECT found.id::text
  FROM unnest(:id::uuid[]) AS t (id)
 CROSS JOIN LATERAL (
       SELECT id FROM job
        WHERE job.run_id = t.id AND (job.state = 'RUNNING' OR job.state <> 'RUNNING')
       OFFSET 0) found
 LIMIT :most
