-- A run that works on what another one has read: the same window, the same rules.
INSERT INTO pipeline_run (run_id, root_id, pipeline_id, mode, before_mark, start_mark, end_mark,
                          overlap, margin, counted, calls, plan, planned_at, rules, rules_digest,
                          number)
SELECT :run_id, :root_id, pipeline_id, :mode, before_mark, start_mark, end_mark, overlap, margin,
       counted, calls, plan, CASE WHEN :mode = 'replay' THEN {now} ELSE planned_at END, rules,
       rules_digest, :number
  FROM pipeline_run
 WHERE run_id = :old_id
