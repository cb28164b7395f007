-- What is missing from the answer lost its lease.
SELECT i.place, coalesce(progress.saves, 0), coalesce(progress.done, 0),
       coalesce(progress.next_offset, 0)
  FROM {rows:place id fence} AS i
  CROSS JOIN job ON job.id = i.id AND job.fence = i.fence AND job.state = 'RUNNING'
  LEFT JOIN progress ON progress.job_id = job.id
