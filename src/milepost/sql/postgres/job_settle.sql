-- Moves leased jobs to their outcomes. No row back means the lease was lost, or, for an outcome
-- that is not an end, that the job was asked to stop. CASE hides the state from the planner's
-- statistics, which say that no job is RUNNING and would scan for them all.
UPDATE job
   SET state = i.state, move = i.move, version = version + 1, worker_id = NULL, actor = :actor,
       detail = i.detail,
       due_at = {now} + i.delay_us{micros},
       result = i.result, error = coalesce(i.error, job.error), cause = i.cause,
       finished_at = CASE WHEN i.delay_us IS NULL AND i.state <> 'WAITING' THEN {now} END,
       errors = job.errors + CASE WHEN i.move IN ('retry', 'fail') THEN 1 ELSE 0 END,
       polls = job.polls + CASE WHEN i.move = 'later' THEN 1 ELSE 0 END,
       releases = job.releases + CASE WHEN i.move = 'release' THEN 1 ELSE 0 END
  FROM unnest(:id::uuid[], :fence::bigint[], :move::text[], :state::text[], :delay_us::bigint[],
              :result::bytea[], :error::text[], :cause::text[], :detail::text[])
       AS i (id, fence, move, state, delay_us, result, error, cause, detail)
 WHERE job.id = i.id AND job.fence = i.fence
   AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END
   AND (i.move NOT IN ('retry', 'later', 'release')
        OR (job.cancel_reason IS NULL
            AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')))
RETURNING job.id::text, job.run_id::text, job.step
