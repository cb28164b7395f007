UPDATE run
   SET state = t.state, move = t.move, version = run.version + 1, actor = :actor, detail = :detail,
       cause = coalesce(t.cause, run.cause), ending = coalesce(t.ending, run.ending),
       current_step = coalesce(t.current_step, run.current_step), phase = t.phase,
       watermark_after = coalesce('epoch'::timestamptz + t.watermark{micros}, run.watermark_after),
       started_at = coalesce(started_at, CASE WHEN t.move = 'begin' THEN {now} END),
       report = CASE WHEN t.move = 'finish'
                     THEN (SELECT job.result FROM job JOIN step ON step.run_id = job.run_id
                                                               AND step.number = job.step
                            WHERE job.run_id = run.id AND step.role = 'reduce'
                              AND job.state = 'SUCCEEDED') ELSE report END,
       finished_at = CASE WHEN t.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED') THEN {now} END
  FROM unnest(:id::uuid[], :version::integer[], :state::text[], :move::text[], :cause::text[],
              :ending::text[], :current_step::integer[], :phase::text[], :watermark::bigint[])
       AS t (id, version, state, move, cause, ending, current_step, phase, watermark)
 WHERE run.id = t.id AND run.version = t.version
RETURNING run.id::text
