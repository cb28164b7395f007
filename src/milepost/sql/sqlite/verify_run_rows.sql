SELECT id, version, state, move, fence, actor, detail
  FROM run
 ORDER BY run.id
