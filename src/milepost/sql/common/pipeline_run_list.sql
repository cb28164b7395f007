SELECT {text:p.run_id}, {text:p.root_id}, p.mode, run.state, run.cause, p.start_mark, p.end_mark,
       p.after_mark, run.created_at, run.finished_at
  FROM pipeline_run AS p JOIN run ON run.id = p.run_id
 WHERE p.pipeline_id = :pipeline_id
 ORDER BY p.number DESC
 LIMIT :most
