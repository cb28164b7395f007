-- each
UPDATE run
   SET state = :state, move = :move, version = version + 1, actor = :actor, detail = :detail,
       cause = coalesce(:cause, cause), ending = coalesce(:ending, ending),
       current_step = coalesce(:current_step, current_step), phase = :phase,
       watermark_after = coalesce(:watermark, watermark_after),
       started_at = coalesce(started_at, CASE WHEN :move = 'begin' THEN {now} END),
       report = CASE WHEN :move = 'finish'
                     THEN (SELECT job.result FROM job JOIN step ON step.run_id = job.run_id
                                                               AND step.number = job.step
                            WHERE job.run_id = run.id AND step.role = 'reduce'
                              AND job.state = 'SUCCEEDED') ELSE report END,
       finished_at = CASE WHEN :state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') THEN {now} END
 WHERE id = :id AND version = :version
RETURNING id
