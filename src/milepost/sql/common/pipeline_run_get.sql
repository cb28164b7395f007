SELECT {text:p.run_id}, {text:p.root_id}, p.pipeline_id, pipeline.name, p.mode, p.before_mark,
       p.start_mark, p.end_mark, p.after_mark, p.overlap, p.margin, p.counted, p.calls, p.missing,
       p.planned_at, p.plan, p.rules_digest, p.rules, pipeline.measure, r.mode,
       coalesce(r.number, p.number)
  FROM pipeline_run AS p JOIN pipeline ON pipeline.id = p.pipeline_id
  LEFT JOIN pipeline_run AS r ON r.run_id = p.root_id
 WHERE p.run_id = :run_id
