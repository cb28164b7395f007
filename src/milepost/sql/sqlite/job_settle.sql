-- each: moves one leased job to its outcome. No row back means the lease was lost, or, for an
-- outcome that is not an end, that the job was asked to stop.
UPDATE job
   SET state = :state, move = :move, version = version + 1, worker_id = NULL, actor = :actor,
       detail = :detail,
       due_at = {now} + :delay_us,
       result = :result, error = coalesce(:error, error), cause = :cause,
       finished_at = CASE WHEN :delay_us IS NULL AND :state <> 'WAITING' THEN {now} END,
       errors = errors + (:move IN ('retry', 'fail')),
       polls = polls + (:move = 'later'),
       releases = releases + (:move = 'release')
 WHERE id = :id AND fence = :fence AND state = 'RUNNING'
   AND (:move NOT IN ('retry', 'later', 'release')
        OR (cancel_reason IS NULL
            AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')))
RETURNING id, run_id, step
