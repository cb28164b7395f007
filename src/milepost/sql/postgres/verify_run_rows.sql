SELECT id::text, version, state, move, fence, actor, detail
  FROM run
 ORDER BY run.id
