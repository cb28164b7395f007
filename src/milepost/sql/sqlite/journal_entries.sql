-- A file has no users: nobody logs in.
SELECT seq, move, from_state, to_state, fence, at, actor, detail, NULL
  FROM journal
 WHERE subject_id = :id AND machine = :machine
 ORDER BY seq
