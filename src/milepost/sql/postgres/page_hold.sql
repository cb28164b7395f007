-- Holds the jobs whose pages are to be stored. What is missing from the answer lost its lease.
-- For the planner: see job_settle.
SELECT i.place, coalesce(progress.saves, 0), coalesce(progress.done, false),
       coalesce(progress.next_offset, 0)
  FROM unnest(:place::integer[], :id::uuid[], :fence::bigint[]) AS i (place, id, fence)
  JOIN job ON job.id = i.id AND job.fence = i.fence AND i.fence % 1 = 0
          AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END
  LEFT JOIN progress ON progress.job_id = job.id
 ORDER BY job.id
   FOR NO KEY UPDATE OF job
