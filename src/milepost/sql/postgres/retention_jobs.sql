-- A page of old jobs, in the order of their ids, which is that of their births: whose time is over?
-- Those of a run leave with it, and one whose steps a newer job goes on with leaves after that. A move by hand sets no finished_at; the journal knows. (What is too
-- young is cut off outside: a range with two ends looks small to the planner, and then it sorts.)
SELECT job.id::text, job.run_id IS NULL AND job.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
       AND coalesce(job.finished_at,
                    (SELECT at FROM journal WHERE subject_id = job.id AND machine = 'job'
                        AND seq = job.version))
           <= {now} - (CASE job.state WHEN 'SUCCEEDED' THEN :succeeded_us::bigint
                        ELSE :failed_us::bigint END){micros}
       AND NOT EXISTS (SELECT 1 FROM journal WHERE subject_id = job.id AND machine = 'job'
                          AND move <> 'erase'
                          AND at > {now} - (SELECT least_us FROM retention){micros})
       AND NOT EXISTS (SELECT 1 FROM outbox WHERE machine = 'job' AND subject_id = job.id
                          AND delivered_at IS NULL AND dead_at IS NULL)
       AND (SELECT count(*) FROM job AS newer
             WHERE newer.rerun_of = job.id AND newer.origin_id IS NOT NULL) = 0
  FROM (SELECT id, state, run_id, finished_at, version FROM job
         WHERE id > :after::uuid
         ORDER BY id
         LIMIT :most) AS job
 WHERE job.id < :before::uuid
