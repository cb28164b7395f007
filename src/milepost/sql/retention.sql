-- What leaves the store with time.

-- name: retention_begin
-- postgres
-- Lets the triggers remove the entries of what is deleted, until the end of this transaction.
SELECT set_config('milepost.retaining', 'on', true),
       set_config('milepost.keeping_entries', CASE WHEN :keeps::boolean THEN 'on' ELSE '' END, true)
-- sqlite
-- Lets the triggers remove the entries of what is deleted, until it is ended.
UPDATE retention SET active = 1, keeping_entries = :keeps

-- name: retention_chain
-- These runs, those next to them in a chain of resumed runs, and those of the same tree of batches: whose
-- time is over?
-- postgres
SELECT run.id::text, run.resumes::text, run.parent_id::text, run.state IN {final}
       AND coalesce(run.finished_at,
                    (SELECT at FROM journal WHERE subject_id = run.id AND machine = 'run'
                        AND seq = run.version))
           <= {now} - (CASE run.state WHEN 'SUCCEEDED' THEN :succeeded_us::bigint
                        ELSE :failed_us::bigint END){micros}
       AND NOT EXISTS (SELECT 1 FROM journal WHERE subject_id = run.id AND machine = 'run'
                          AND move <> 'erase'
                          AND at > {now} - (SELECT least_us FROM retention){micros})
       AND NOT EXISTS (SELECT 1 FROM outbox WHERE machine = 'run' AND subject_id = run.id
                          AND delivered_at IS NULL AND dead_at IS NULL)
  FROM run
 WHERE run.id = ANY (:id::uuid[]) OR run.resumes = ANY (:id::uuid[]) OR run.parent_id = ANY (:id::uuid[])
-- sqlite
SELECT run.id, run.resumes, run.parent_id, run.state IN {final}
       AND coalesce(run.finished_at,
                    (SELECT at FROM journal WHERE subject_id = run.id AND machine = 'run'
                        AND seq = run.version))
           <= {now} - (CASE run.state WHEN 'SUCCEEDED' THEN :succeeded_us
                        ELSE :failed_us END)
       AND NOT EXISTS (SELECT 1 FROM journal WHERE subject_id = run.id AND machine = 'run'
                          AND move <> 'erase'
                          AND at > {now} - (SELECT least_us FROM retention){micros})
       AND NOT EXISTS (SELECT 1 FROM outbox WHERE machine = 'run' AND subject_id = run.id
                          AND delivered_at IS NULL AND dead_at IS NULL)
  FROM run
 WHERE run.id IN (SELECT value FROM json_each(:id)) OR run.resumes IN (SELECT value FROM json_each(:id))
    OR run.parent_id IN (SELECT value FROM json_each(:id))

-- name: retention_end
-- postgres
SELECT set_config('milepost.retaining', '', true), set_config('milepost.keeping_entries', '', true)
-- sqlite
UPDATE retention SET active = 0, keeping_entries = 0

-- name: retention_entries
-- A page of old subjects in the journal, in the order of their ids: which have left, long enough ago?
-- (From id to id by the key: a history may be long.)
-- postgres
WITH RECURSIVE walk (id, number) AS (
  SELECT (SELECT subject_id FROM journal WHERE subject_id > :after::uuid
           ORDER BY subject_id LIMIT 1), 1
   UNION ALL
  SELECT (SELECT subject_id FROM journal WHERE subject_id > walk.id
           ORDER BY subject_id LIMIT 1), number + 1
    FROM walk
   WHERE walk.id < :before::uuid AND number < :most::bigint
)
SELECT walk.id::text,
       NOT EXISTS (SELECT 1 FROM job WHERE job.id = walk.id)
       AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = walk.id)
       AND NOT EXISTS (SELECT 1 FROM journal WHERE subject_id = walk.id AND move <> 'erase'
                          AND at > {now} - greatest(:audit_us::bigint, (SELECT least_us FROM retention)){micros})
       AND (SELECT to_state FROM journal WHERE subject_id = walk.id
             ORDER BY machine, seq DESC LIMIT 1) IN {final}
  FROM walk
 WHERE walk.id < :before::uuid
-- sqlite
WITH RECURSIVE walk (id, number) AS (
  SELECT (SELECT subject_id FROM journal WHERE subject_id > :after
           ORDER BY subject_id LIMIT 1), 1
   UNION ALL
  SELECT (SELECT subject_id FROM journal WHERE subject_id > walk.id
           ORDER BY subject_id LIMIT 1), number + 1
    FROM walk
   WHERE walk.id < :before AND number < :most
)
SELECT walk.id,
       NOT EXISTS (SELECT 1 FROM job WHERE job.id = walk.id)
       AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = walk.id)
       AND NOT EXISTS (SELECT 1 FROM journal WHERE subject_id = walk.id AND move <> 'erase'
                          AND at > {now} - max(:audit_us, (SELECT least_us FROM retention)){micros})
       AND (SELECT to_state FROM journal WHERE subject_id = walk.id
             ORDER BY machine, seq DESC LIMIT 1) IN {final}
  FROM walk
 WHERE walk.id < :before

-- name: archive_entries
-- The oldest entries of each of these; their numbers have no holes. (Each by the key.)
-- postgres
SELECT journal.machine, journal.subject_id::text, journal.seq, journal.move, journal.from_state,
       journal.to_state, journal.at, journal.actor, journal.fence, journal.detail, journal.db_user
  FROM unnest(:id::uuid[]) AS due (id)
  JOIN journal ON journal.subject_id = due.id
 WHERE journal.seq <= (SELECT min(seq) FROM journal AS first
                        WHERE first.subject_id = due.id AND first.machine = journal.machine)
                      + :most::bigint
-- sqlite
SELECT journal.machine, journal.subject_id, journal.seq, journal.move, journal.from_state,
       journal.to_state, journal.at, journal.actor, journal.fence, journal.detail, NULL
  FROM json_each(:id) AS due
  JOIN journal ON journal.subject_id = due.value
 WHERE journal.seq <= (SELECT min(seq) FROM journal AS first
                        WHERE first.subject_id = due.value AND first.machine = journal.machine)
                      + :most

-- name: archive_summed
-- Up to which entry the histories of these are summed up.
-- postgres
SELECT subject_id::text, max(seq) FROM journal
 WHERE subject_id = ANY (:id::uuid[]) AND machine = 'job' AND move = 'snapshot'
 GROUP BY subject_id
-- sqlite
SELECT subject_id, max(seq) FROM journal
 WHERE subject_id IN (SELECT value FROM json_each(:id)) AND machine = 'job' AND move = 'snapshot'
 GROUP BY subject_id

-- name: retention_forget_entries
-- postgres
-- The owner's trigger does it, and answers with those whose entries have left.
INSERT INTO journal_upkeep (task, subject_id, before)
SELECT 'forget', due.id, {now} - :audit_us::bigint{micros} FROM unnest(:id::uuid[]) AS due (id)
RETURNING subject_id::text
-- sqlite
-- The trigger on the journal refuses what is too young, or still there.
DELETE FROM journal
 WHERE subject_id IN (SELECT value FROM json_each(:id)) AND :audit_us >= 0
RETURNING subject_id

-- name: retention_forget_job
-- postgres
-- A row that somebody holds is not waited for: it leaves another time. So does one that was run again.
WITH picked AS MATERIALIZED (
  SELECT id, fence FROM job
   WHERE id = ANY (:id::uuid[]) AND state IN {final}
     AND (SELECT count(*) FROM job AS newer
           WHERE newer.rerun_of = job.id AND newer.origin_id IS NOT NULL AND newer.run_id IS NULL) = 0
   ORDER BY id
     FOR UPDATE SKIP LOCKED
)
DELETE FROM job USING picked
 WHERE job.id = picked.id AND picked.fence % 1 = 0
RETURNING job.id::text
-- sqlite
DELETE FROM job
 WHERE id IN (SELECT value FROM json_each(:id)) AND state IN {final}
   AND (SELECT count(*) FROM job AS newer
         WHERE newer.rerun_of = job.id AND newer.origin_id IS NOT NULL AND newer.run_id IS NULL) = 0
RETURNING id

-- name: retention_forget_run
-- postgres
-- A row that somebody holds is not waited for: it leaves another time.
WITH picked AS MATERIALIZED (
  SELECT id, fence FROM run
   WHERE id = ANY (:id::uuid[]) AND state IN {final}
   ORDER BY id
     FOR UPDATE SKIP LOCKED
)
DELETE FROM run USING picked
 WHERE run.id = picked.id AND picked.fence % 1 = 0
RETURNING run.id::text
-- sqlite
DELETE FROM run
 WHERE id IN (SELECT value FROM json_each(:id)) AND state IN {final}
RETURNING id

-- name: retention_hold_jobs
-- postgres
-- A row that somebody holds is not waited for: it leaves another time. A caller that runs one again meanwhile
-- waits, and then finds nothing.
SELECT id::text, rerun_of::text FROM job
 WHERE id = ANY (:id::uuid[]) AND state IN {final}
 ORDER BY id
   FOR UPDATE SKIP LOCKED
-- sqlite
SELECT id, rerun_of FROM job
 WHERE id IN (SELECT value FROM json_each(:id)) AND state IN {final}

-- name: retention_jobs
-- A page of old jobs, in the order of their ids, the order in which they were created: whose time
-- is over? Those of a run leave with it. One whose steps a newer job goes on with leaves with the
-- newest of its chain, and that stays until the time of all before it is over: they must not speak
-- for the chain again. A move by hand sets no finished_at; the journal knows. (What is too young is
-- cut off outside: a range with two ends looks small to the planner, and then it sorts.)
-- postgres
SELECT job.id::text, job.run_id IS NULL AND job.state IN {final}
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
-- sqlite
SELECT job.id, job.run_id IS NULL AND job.state IN {final}
       AND coalesce(job.finished_at,
                    (SELECT at FROM journal WHERE subject_id = job.id AND machine = 'job'
                        AND seq = job.version))
           <= {now} - (CASE job.state WHEN 'SUCCEEDED' THEN :succeeded_us
                        ELSE :failed_us END)
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
             WHERE ended_at > {now} - (CASE state WHEN 'SUCCEEDED' THEN :succeeded_us
                                       ELSE :failed_us END)))
  FROM (SELECT id, state, run_id, rerun_of, finished_at, version FROM job
         WHERE id > :after
         ORDER BY id
         LIMIT :most) AS job
 WHERE job.id < :before

-- name: retention_lock
-- postgres
-- A caller that resumes one of them meanwhile waits, and then finds nothing.
SELECT id::text FROM run WHERE id = ANY (:id::uuid[]) ORDER BY run.id FOR UPDATE SKIP LOCKED
-- sqlite
-- Nobody else writes in this transaction's time.
SELECT id FROM run WHERE id IN (SELECT value FROM json_each(:id)) ORDER BY run.id

-- name: retention_minimum
SELECT least_us, set_at, set_by FROM retention

-- name: retention_run_jobs
-- postgres
SELECT found.id::text
  FROM unnest(:id::uuid[]) AS t (id)
 CROSS JOIN LATERAL (
       SELECT id FROM job
        WHERE job.run_id = t.id AND (job.state = 'RUNNING' OR job.state <> 'RUNNING')
       OFFSET 0) found
 LIMIT :most
-- sqlite
SELECT id FROM job WHERE run_id IN (SELECT value FROM json_each(:id)) LIMIT :most

-- name: retention_runs
-- A page of old runs, in the order of their ids, the order in which they were created: whose time
-- is over?
-- postgres
SELECT run.id::text, run.state IN {final}
       AND coalesce(run.finished_at,
                    (SELECT at FROM journal WHERE subject_id = run.id AND machine = 'run'
                        AND seq = run.version))
           <= {now} - (CASE run.state WHEN 'SUCCEEDED' THEN :succeeded_us::bigint
                        ELSE :failed_us::bigint END){micros}
       AND NOT EXISTS (SELECT 1 FROM journal WHERE subject_id = run.id AND machine = 'run'
                          AND move <> 'erase'
                          AND at > {now} - (SELECT least_us FROM retention){micros})
       AND NOT EXISTS (SELECT 1 FROM outbox WHERE machine = 'run' AND subject_id = run.id
                          AND delivered_at IS NULL AND dead_at IS NULL)
  FROM (SELECT id, state, finished_at, version FROM run
         WHERE id > :after::uuid
         ORDER BY id
         LIMIT :most) AS run
 WHERE run.id < :before::uuid
-- sqlite
SELECT run.id, run.state IN {final}
       AND coalesce(run.finished_at,
                    (SELECT at FROM journal WHERE subject_id = run.id AND machine = 'run'
                        AND seq = run.version))
           <= {now} - (CASE run.state WHEN 'SUCCEEDED' THEN :succeeded_us
                        ELSE :failed_us END)
       AND NOT EXISTS (SELECT 1 FROM journal WHERE subject_id = run.id AND machine = 'run'
                          AND move <> 'erase'
                          AND at > {now} - (SELECT least_us FROM retention){micros})
       AND NOT EXISTS (SELECT 1 FROM outbox WHERE machine = 'run' AND subject_id = run.id
                          AND delivered_at IS NULL AND dead_at IS NULL)
  FROM (SELECT id, state, finished_at, version FROM run
         WHERE id > :after
         ORDER BY id
         LIMIT :most) AS run
 WHERE run.id < :before

-- name: retention_set_minimum
UPDATE retention SET least_us = :least_us, set_at = {now}, set_by = :actor
