-- What `milepost doctor` looks for, beyond what `milepost verify` compares.

-- name: doctor_claims
-- Every claim ends in one counted way, or runs, or succeeded, or was cut short by cancel or expire (I5).
SELECT {text:id}, fence, errors + losses + polls + releases
  FROM job
 WHERE NOT CASE WHEN state IN {counted}
                THEN fence = errors + losses + polls + releases + 1
                WHEN state IN {unclaimed} THEN fence = errors + losses + polls + releases
                ELSE fence - (errors + losses + polls + releases) IN (0, 1) END

-- name: doctor_budgets
-- More failed attempts than its options allow (I5).
SELECT {text:id}, errors + losses, retries + coalesce(recoveries, 0) + 1
  FROM job
 WHERE errors + losses > retries + coalesce(recoveries, 0) + 1

-- name: doctor_kept
-- What an attempt left behind that its job never had (I2).
SELECT DISTINCT {text:kept.job_id}, kept.word
  FROM (SELECT job_id, fence, 'failure' AS word FROM failure
         UNION ALL
        SELECT job_id, fence, 'usage' FROM usage
         UNION ALL
        SELECT job_id, taken_by, 'signal' FROM signal WHERE taken_by IS NOT NULL) AS kept
 WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = kept.job_id AND job.fence >= kept.fence)

-- name: doctor_advances
-- A run passes each of its steps once (I11).
SELECT {text:run.id}, count(*), (SELECT count(*) FROM step WHERE step.run_id = run.id)
  FROM run JOIN journal ON journal.subject_id = run.id AND journal.machine = 'run'
   AND journal.move = 'advance'
 WHERE EXISTS (SELECT 1 FROM step WHERE step.run_id = run.id)
 GROUP BY run.id
HAVING count(*) >= (SELECT count(*) FROM step WHERE step.run_id = run.id)

-- name: doctor_reducers
-- A run has one reducer (I11).
SELECT {text:job.run_id}, count(*)
  FROM job JOIN step ON step.run_id = job.run_id AND step.number = job.step
 WHERE step.role = 'reduce'
 GROUP BY job.run_id
HAVING count(*) > 1

-- name: doctor_gates
-- Jobs that are past a gate which is closed (I12).
SELECT {text:job.id}, step.name
  FROM job JOIN step ON step.run_id = job.run_id AND step.number = job.step
 WHERE step.gated AND NOT step.opened
   AND (job.state IN {pending} OR job.state IN {counted})

-- name: doctor_pages
-- The pages of a partition follow each other: each was applied once, none was left out (I13).
SELECT {text:page.root_id}, count(*), page.ordinal, min(page.number), max(page.number)
  FROM page
 GROUP BY page.root_id, page.ordinal
HAVING count(*) <> max(page.number) - min(page.number) + 1

-- name: doctor_marks
-- A watermark goes back by an override alone, each entry from where the one before ended (I14).
SELECT pipeline.name, 'entry ' || told.seq || ' moves it back'
  FROM watermark_entry AS told JOIN pipeline ON pipeline.id = told.pipeline_id
 WHERE told.move = 'advance' AND told.to_mark < told.from_mark
 UNION ALL
SELECT pipeline.name, 'entry ' || told.seq || ' does not begin where the one before ended'
  FROM (SELECT seq, pipeline_id, from_mark,
               lag(to_mark) OVER (PARTITION BY pipeline_id ORDER BY seq) AS before,
               row_number() OVER (PARTITION BY pipeline_id ORDER BY seq) AS place
          FROM watermark_entry) AS told
  JOIN pipeline ON pipeline.id = told.pipeline_id
 WHERE told.place > 1 AND coalesce(told.before, -1) <> coalesce(told.from_mark, -1)
 UNION ALL
SELECT pipeline.name, 'it is not where its last entry ended'
  FROM pipeline
  JOIN watermark_entry AS last ON last.pipeline_id = pipeline.id
   AND last.seq = (SELECT max(seq) FROM watermark_entry WHERE pipeline_id = pipeline.id)
 WHERE coalesce(last.to_mark, -1) <> coalesce(pipeline.mark, -1)
 UNION ALL
SELECT pipeline.name, 'entry ' || told.seq || ' goes beyond the end of what its run read'
  FROM watermark_entry AS told JOIN pipeline ON pipeline.id = told.pipeline_id
  JOIN pipeline_run ON pipeline_run.run_id = told.run_id
 WHERE told.move = 'advance' AND told.to_mark > pipeline_run.end_mark
 UNION ALL
SELECT pipeline.name, 'entry ' || told.seq || ' is of a run that is ' || run.state
  FROM watermark_entry AS told JOIN pipeline ON pipeline.id = told.pipeline_id
  JOIN run ON run.id = told.run_id
 WHERE told.move = 'advance' AND run.state <> 'SUCCEEDED'

-- name: doctor_messages
-- A message is known by its subject and the move it tells of, and so by one id (I16).
SELECT id, channel FROM outbox
 WHERE id <> machine || '_' || {text:subject_id} || '_' || seq

-- name: doctor_unique
-- Live jobs of one unique key, schedules' slots among them, but the first (I17).
SELECT {text:job.id}, job.unique_key
  FROM job
 WHERE job.unique_key IS NOT NULL AND job.state NOT IN {final}
   AND EXISTS (SELECT 1 FROM job AS first
                WHERE first.tenant = job.tenant AND first.kind = job.kind
                  AND first.unique_key = job.unique_key AND first.state NOT IN {final}
                  AND first.id < job.id)

-- name: doctor_cancelled
-- Jobs that were asked to stop, no longer run and did not end (I18).
SELECT {text:id}, cancel_reason FROM job WHERE state IN {unclaimed} AND cancel_reason IS NOT NULL

-- name: doctor_left_open
-- The open jobs of final runs; a running one ends by itself.
SELECT {text:job.id}, {text:run.id}
  FROM run JOIN job ON job.run_id = run.id
 WHERE run.state IN {final} AND job.state IN {unclaimed}
 ORDER BY job.id

-- name: doctor_leases
-- Running jobs whose worker is gone for longer than the grace (I15).
SELECT {text:job.id}, job.worker_id
  FROM job
  LEFT JOIN journal ON journal.subject_id = job.id AND journal.machine = 'job'
   AND journal.seq = job.version
 WHERE job.state = 'RUNNING' AND coalesce(journal.at, job.created_at) < {now} - :grace_us{micros}
   AND NOT EXISTS (SELECT 1 FROM worker
                    WHERE worker.id = job.worker_id AND worker.state <> 'STOPPED'
                      AND worker.lease_until > {now} - :grace_us{micros})

-- name: doctor_due
-- Jobs that sleep although their time came longer ago than the grace.
SELECT {text:id}, state FROM job WHERE state IN {sleeping} AND due_at < {now} - :grace_us{micros}

-- name: doctor_late
-- Open jobs that nobody runs and whose deadline passed longer ago than the grace.
SELECT {text:id}, state FROM job
 WHERE state IN {unclaimed} AND deadline_at < {now} - :grace_us{micros}

-- name: doctor_spent
-- Jobs that wait although their attempts are spent (H-21).
SELECT {text:job.id}, job.state
  FROM job
  LEFT JOIN journal ON journal.subject_id = job.id AND journal.machine = 'job'
   AND journal.seq = job.version
 WHERE job.state IN {pending} AND {spent}
   AND coalesce(journal.at, job.created_at) < {now} - :grace_us{micros}

-- name: doctor_stranded
-- Jobs that wait at a gate which has been open for longer than the grace (I12).
SELECT {text:job.id}, step.name
  FROM job JOIN step ON step.run_id = job.run_id AND step.number = job.step
  JOIN run ON run.id = job.run_id
  LEFT JOIN journal ON journal.subject_id = run.id AND journal.machine = 'run'
   AND journal.seq = run.version
 WHERE job.state = 'GATED' AND step.opened AND run.state IN {active} AND run.state <> 'CREATED'
   AND coalesce(journal.at, run.created_at) < {now} - :grace_us{micros}

-- name: doctor_idle_runs
-- Open runs that have not moved for longer than the grace and have no open job: a move may be due.
SELECT {text:run.id}
  FROM run
  LEFT JOIN journal ON journal.subject_id = run.id AND journal.machine = 'run'
   AND journal.seq = run.version
 WHERE run.state NOT IN {final}
   AND coalesce(journal.at, run.created_at) < {now} - :grace_us{micros}
   AND NOT EXISTS (SELECT 1 FROM job WHERE job.run_id = run.id AND job.state NOT IN {final})

-- name: doctor_queued
-- What waits in line: how much of each kind, and whether the first of it came longer ago than the grace.
SELECT job.queue, job.kind, job.kind_version, count(*), min({text:job.id})
  FROM job
 WHERE job.state = 'QUEUED'
 GROUP BY job.queue, job.kind, job.kind_version
HAVING min(job.created_at) < {now} - :grace_us{micros}
 ORDER BY job.queue, job.kind

-- name: doctor_totals
-- Queues whose jobs, counted as they come and go, are not as many as there are.
-- postgres
SELECT queue, sum(kept)::bigint, sum(held)::bigint
  FROM (SELECT queue, count AS kept, 0 AS held FROM queue_total
         UNION ALL
        SELECT queue, CASE name WHEN 'create' THEN count ELSE -count END, 0 FROM tally_delta
         WHERE name IN ('create', 'remove')
         UNION ALL
        SELECT queue, 0, count(*) FROM job GROUP BY queue) AS counted
 GROUP BY queue
HAVING sum(kept) <> sum(held)
-- sqlite
-- Where rows have other numbers than they had, maintenance is about to count them.
SELECT queue, sum(kept), sum(held)
  FROM (SELECT queue, count AS kept, 0 AS held FROM queue_total
         UNION ALL
        SELECT queue, CASE name WHEN 'create' THEN count ELSE -count END, 0 FROM tally_delta
         WHERE name IN ('create', 'remove')
         UNION ALL
        SELECT queue, sum(rowid > (SELECT number FROM tally_mark)), count(*) FROM job GROUP BY queue) AS counted
 WHERE (SELECT number = 0 OR EXISTS (SELECT 1 FROM job WHERE job.rowid = number AND job.id = job_id) FROM tally_mark)
 GROUP BY queue
HAVING sum(kept) <> sum(held)

-- name: doctor_workers
-- Workers that stopped beating longer ago than the grace, and the jobs that they hold.
SELECT worker.id,
       (SELECT count(*) FROM job WHERE job.worker_id = worker.id AND job.state = 'RUNNING')
  FROM worker
 WHERE worker.state <> 'STOPPED' AND worker.lease_until < {now} - :grace_us{micros}

-- name: doctor_leads
-- Workers whose lease reaches further ahead than its own length: the clock went back.
SELECT id, state FROM worker
 WHERE state <> 'STOPPED' AND lease_until > {now} + lease_us{micros} + :grace_us{micros}

-- name: doctor_stale
SELECT name, 'its watermark is older than it may be' FROM pipeline WHERE stale_at IS NOT NULL

-- name: doctor_offset
-- Tests move the store's clock; nobody else does.
SELECT 'clock', offset_us / 1000000 FROM clock WHERE offset_us <> 0

-- name: doctor_clock
-- postgres
-- Seconds since 1970, by the server's clock.
SELECT extract(epoch FROM clock_timestamp())::float8
-- sqlite
-- The file has no clock but that of the program.
SELECT (julianday('now') - 2440587.5) * 86400

-- name: doctor_server
-- postgres
-- Old transactions keep dead rows alive for everybody; so does a table that is not vacuumed.
SELECT 'transaction', 'pid ' || pid, 'it has been open for '
       || round(extract(epoch FROM clock_timestamp() - xact_start)) || ' s (' || coalesce(state, '?')
       || ', ' || coalesce(nullif(application_name, ''), usename::text, 'unknown') || ')'
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
   AND xact_start < clock_timestamp() - make_interval(secs => :long)
 UNION ALL
SELECT 'transaction', 'prepared ' || gid, 'it was prepared at ' || prepared
  FROM pg_prepared_xacts
 WHERE database = current_database() AND prepared < clock_timestamp() - make_interval(secs => :long)
 UNION ALL
SELECT 'bloat', relname::text, n_dead_tup || ' of its rows are dead, ' || n_live_tup || ' live'
  FROM pg_stat_user_tables
 WHERE relid IN (to_regclass('job'), to_regclass('run'), to_regclass('outbox'), to_regclass('worker'),
                 to_regclass('progress'), to_regclass('step_count'))
   AND n_dead_tup > 50000 AND n_dead_tup > n_live_tup
 UNION ALL
SELECT 'rights', CASE grantee WHEN 0 THEN 'everybody' ELSE pg_get_userbyid(grantee)::text END,
       'may ' || string_agg(DISTINCT privilege_type, ', ' ORDER BY privilege_type) || ' on ' || relname
  FROM pg_class CROSS JOIN LATERAL aclexplode(relacl)
 WHERE oid IN (to_regclass('journal'), to_regclass('watermark_entry'), to_regclass('clock'),
               to_regclass('migration'))
   AND grantee <> relowner AND lower(privilege_type) <> 'select'
 GROUP BY grantee, relname
-- sqlite
SELECT 'wal', 'journal_mode', 'it is ' || journal_mode FROM pragma_journal_mode
 WHERE journal_mode <> 'wal'
 UNION ALL
SELECT 'bloat', 'file', freelist_count || ' of its ' || page_count || ' pages are free'
  FROM pragma_freelist_count CROSS JOIN pragma_page_count
 WHERE freelist_count > 25000 AND freelist_count * 2 > page_count AND :long > 0

-- name: doctor_integrity
-- Whether the database's own structures are whole (I22).
-- postgres
SELECT 'checksums', checksum_failures || ' pages failed their checksum' FROM pg_stat_database
 WHERE datname = current_database() AND checksum_failures > 0
 UNION ALL
SELECT 'index', c.relname || ' is not valid' FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE i.indrelid IN (to_regclass('job'), to_regclass('run')) AND NOT i.indisvalid
-- sqlite
SELECT 'file', integrity_check FROM pragma_integrity_check(20) WHERE integrity_check <> 'ok'

-- name: doctor_amcheck
-- postgres
-- Raises at an index that is broken; does nothing where the extension is not there for the caller.
DO $$
DECLARE
  checked record;
BEGIN
  FOR checked IN
    SELECT p.oid::regproc AS by_name, i.indexrelid
      FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.deptype = 'e'
      JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'amcheck'
     CROSS JOIN pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
     WHERE p.proname = 'bt_index_check' AND p.pronargs = 1 AND a.amname = 'btree' AND i.indisvalid
       AND i.indrelid IN (to_regclass('job'), to_regclass('run'))
       AND has_function_privilege(p.oid, 'execute')
  LOOP
    EXECUTE format('SELECT %s(%s::regclass)', checked.by_name, checked.indexrelid);
  END LOOP;
END $$
-- sqlite
-- integrity_check has looked.
