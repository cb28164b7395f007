SELECT seq, move, from_state, to_state, fence, at, actor, detail, db_user
  FROM journal
 WHERE subject_id = :id AND machine = :machine
 ORDER BY seq
