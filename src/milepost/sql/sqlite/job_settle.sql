-- packed, hopefully
-- Moves leased jobs to their outcomes. No row back means the lease was lost, or, for an outcome that
-- is not an end, that the job was asked to stop.
WITH i AS MATERIALIZED {rows:id fence move state delay_us result* error cause detail}
SELECT json_group_array(json_array(job.id)), NULL, json_group_array(job.rowid)
  FROM i CROSS JOIN job
 WHERE job.id = i.id AND job.fence = i.fence AND +job.state = 'RUNNING'
   AND ((i.move <> 'retry' AND i.move <> 'later' AND i.move <> 'release')
        OR (cancel_reason IS NULL
            AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')))
-- then
UPDATE job
   SET state = i.state, move = i.move, version = version + 1, worker_id = NULL, actor = :actor,
       detail = i.detail,
       due_at = {now} + i.delay_us,
       result = i.result, error = coalesce(i.error, job.error), cause = i.cause,
       finished_at = CASE WHEN i.delay_us IS NULL AND i.state <> 'WAITING' THEN {now} END,
       errors = errors + (i.move IN ('retry', 'fail')),
       polls = polls + (i.move = 'later'),
       releases = releases + (i.move = 'release')
  FROM (WITH given AS MATERIALIZED {rows:id fence move state delay_us result* error cause detail}
        SELECT * FROM given) AS i
 WHERE job.id = i.id AND job.fence = i.fence AND +job.state = 'RUNNING'
   AND ((i.move <> 'retry' AND i.move <> 'later' AND i.move <> 'release')
        OR (cancel_reason IS NULL
            AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')))
   AND (:picked IS NULL OR +job.rowid IN (SELECT value FROM json_each(:picked)))
