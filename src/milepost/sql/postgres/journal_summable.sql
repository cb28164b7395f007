-- A page of old jobs, in the order of their ids: of whose history is more than one entry too old? A
-- lone snapshot is not. A row that leaves it to the journal when it started or ended stays as it is.
SELECT job.id::text,
       (SELECT at FROM journal WHERE subject_id = job.id AND machine = 'job' ORDER BY seq OFFSET 1 LIMIT 1)
       < {now} - greatest(:history_us::bigint, (SELECT least_us FROM retention)){micros}
       AND (job.started_at IS NOT NULL OR job.fence = 0)
       AND (job.finished_at IS NOT NULL OR job.state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED'))
       AND job.move <> 'erase'
  FROM (SELECT id, state, fence, move, started_at, finished_at FROM job
         WHERE id > :after::uuid
         ORDER BY id
         LIMIT :most) AS job
 WHERE job.id < :before::uuid
