-- A page of old jobs, in the order of their ids, which is that of their births: whose time is over?
-- Those of a run leave with it. One whose steps a newer job goes on with leaves with the newest of its
-- chain, and that stays until the time of all before it is over: they must not speak for the chain
-- again. A move by hand sets no finished_at; the journal knows. (What is too young is cut off outside:
-- a range with two ends looks small to the planner, and then it sorts.)
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
       AND (job.rerun_of IS NULL OR NOT EXISTS (
            WITH RECURSIVE older (id, state, rerun_of, ended_at) AS (
              SELECT o.id, o.state, o.rerun_of,
                     coalesce(o.finished_at,
                              (SELECT at FROM journal WHERE subject_id = o.id AND machine = 'job'
                                  AND seq = o.version))
                FROM job AS o WHERE o.id = job.rerun_of
              UNION ALL
              SELECT o.id, o.state, o.rerun_of,
                     coalesce(o.finished_at,
                              (SELECT at FROM journal WHERE subject_id = o.id AND machine = 'job'
                                  AND seq = o.version))
                FROM older CROSS JOIN job AS o WHERE o.id = older.rerun_of
            )
            SELECT 1 FROM older
             WHERE ended_at > {now} - (CASE state WHEN 'SUCCEEDED' THEN :succeeded_us::bigint
                                       ELSE :failed_us::bigint END){micros}))
  FROM (SELECT id, state, run_id, rerun_of, finished_at, version FROM job
         WHERE id > :after::uuid
         ORDER BY id
         LIMIT :most) AS job
 WHERE job.id < :before::uuid
