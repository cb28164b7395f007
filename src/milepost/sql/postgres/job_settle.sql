-- Moves leased jobs to their outcomes. No row back means the lease was lost, or, for an outcome
-- that is not an end, that the job was asked to stop. For the planner: CASE hides the state from
-- statistics, which say that no job is RUNNING and would scan for them all; what `% 1 = 0` says is
-- always true, and makes it expect so few rows that it looks each up by its id.
UPDATE job
   SET state = i.state, move = i.move, version = version + 1, worker_id = NULL, actor = :actor,
       detail = i.detail,
       due_at = {now} + i.delay_us{micros}, delay_us = i.delay_us,
       result = i.result, error = coalesce(i.error, job.error), cause = i.cause,
       finished_at = CASE WHEN i.delay_us IS NULL AND i.state <> 'WAITING' THEN {now} END,
       errors = job.errors + CASE WHEN i.move IN ('retry', 'fail') THEN 1 ELSE 0 END,
       polls = job.polls + CASE WHEN i.move = 'later' THEN 1 ELSE 0 END,
       releases = job.releases + CASE WHEN i.move = 'release' THEN 1 ELSE 0 END
  FROM unnest(:id::uuid[], :fence::bigint[], :move::text[], :state::text[], :delay_us::bigint[],
              :result::bytea[], :error::text[], :cause::text[], :detail::text[])
       AS i (id, fence, move, state, delay_us, result, error, cause, detail)
 WHERE job.id = i.id AND job.fence = i.fence AND i.fence % 1 = 0
   AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END
   AND (i.move NOT IN ('retry', 'later', 'release')
        OR (job.cancel_reason IS NULL
            AND (SELECT run.state FROM run WHERE run.id = job.run_id) IS DISTINCT FROM 'STOPPING'))
RETURNING job.id::text
