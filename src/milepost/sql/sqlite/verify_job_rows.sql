SELECT id, version, state, move, fence, errors, losses, polls, releases,
       worker_id, actor, detail
  FROM job
 ORDER BY job.id
