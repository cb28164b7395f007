SELECT id::text, version, state, move, fence, NULL, actor, detail
  FROM run
 ORDER BY run.id
