-- Notes on the jobs that are held which page was stored.
UPDATE job
   SET move = 'note', version = version + 1, phase = 'page ' || i.number, detail = i.detail,
       actor = i.actor
  FROM unnest(:id::uuid[], :fence::bigint[], :number::bigint[], :detail::text[], :actor::text[])
       AS i (id, fence, number, detail, actor)
 WHERE job.id = i.id AND job.fence = i.fence AND i.fence % 1 = 0
   AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END
