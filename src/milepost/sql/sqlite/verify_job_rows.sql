SELECT id, version, state, move, fence, errors, losses, polls, releases, actor, detail
  FROM job
 ORDER BY job.id
