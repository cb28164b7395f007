SELECT seq, move, from_mark, to_mark, {text:run_id}, actor, reason, at
  FROM watermark_entry
 WHERE pipeline_id = :pipeline_id
 ORDER BY seq
