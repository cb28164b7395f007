-- Cancels what has not begun in a run that is stopping, a batch at a time.
-- (By the run's index, state by state: half of a large run may be over. `% 1 = 0` is always true: it makes the planner expect few rows, and look each up by its id.)
WITH open AS MATERIALIZED (
  SELECT found.id, found.fence
    FROM (SELECT number FROM step WHERE run_id = :run_id OFFSET 0) step
   CROSS JOIN unnest('{CREATED, GATED, WAITING, READY, QUEUED, RETRYING}'::text[]) AS s (state)
   CROSS JOIN LATERAL (
         SELECT id, fence FROM job
          WHERE job.run_id = :run_id AND job.step = step.number
            AND job.state BETWEEN s.state AND s.state AND job.state <> 'RUNNING'
          ORDER BY job.state, job.id
          LIMIT (SELECT :most::bigint)
            FOR UPDATE SKIP LOCKED) found
   LIMIT :most
)
UPDATE job
   SET state = 'CANCELLED', move = 'cancel', version = version + 1, actor = :actor,
       detail = 'the run is stopping', finished_at = {now}
  FROM open
 WHERE job.id = open.id AND open.fence % 1 = 0
RETURNING job.id::text, job.run_id::text, job.step
