-- In the order of the primary key, so that it can be read side by side with the rows.
SELECT subject_id::text, seq, move, from_state, to_state, fence, actor, detail
  FROM journal
 WHERE machine = :machine
 ORDER BY subject_id, journal.machine, seq
