-- Maintenance of jobs: sleepers that are due, losses, deadlines, spent budgets.

-- name: job_wake
-- Sends on what sleeps and whose time has come; broker queues wait to be dispatched. What is to be
-- retried and says not when (a move by hand) goes on at once; asked for apart, so that nobody walks
-- over all that sleeps: the planner would take an index by state, so that it is not to see that one.
-- postgres
-- A delay counts from the entry in the journal: `due_at` was set before that was stamped, and long
-- before where the statement waited for the row.
WITH ripe AS MATERIALIZED (
  SELECT id, fence FROM job
   WHERE state IN {sleeping} AND due_at <= {now}
     AND (delay_us IS NULL
          OR coalesce((SELECT at FROM journal
                        WHERE subject_id = job.id AND machine = 'job' AND seq = job.version)
                      + delay_us{micros} <= {now}, true))
   ORDER BY due_at
   LIMIT :most
     FOR UPDATE SKIP LOCKED
), dateless AS MATERIALIZED (
  SELECT id, fence FROM job
   WHERE state IN {sleeping} AND due_at IS NULL AND state || '' = 'RETRYING'
   LIMIT :most
     FOR UPDATE SKIP LOCKED
), going AS MATERIALIZED (
  SELECT id, fence FROM ripe UNION ALL SELECT id, fence FROM dateless LIMIT :most
)
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = CASE state WHEN 'WAITING' THEN 'wake' ELSE 'due' END,
       version = version + 1, actor = :actor, detail = NULL, delay_us = NULL,
       queued_seq = {requeued}
  FROM going
 WHERE job.id = going.id AND going.fence % 1 = 0
RETURNING job.id::text
-- sqlite
UPDATE job
   SET state = CASE WHEN (SELECT transport FROM queue WHERE queue.name = job.queue) <> 'store'
                    THEN 'READY' ELSE 'QUEUED' END,
       move = CASE state WHEN 'WAITING' THEN 'wake' ELSE 'due' END,
       version = version + 1, actor = :actor, detail = NULL, queued_seq = {requeued}
 WHERE rowid IN (
         SELECT rowid FROM (SELECT rowid FROM job
                             WHERE state IN {sleeping} AND due_at <= {now}
                             ORDER BY due_at
                             LIMIT :most)
          UNION ALL
         SELECT rowid FROM job
          WHERE state IN {sleeping} AND due_at IS NULL AND state = 'RETRYING'
          LIMIT :most)
RETURNING id

-- name: job_lose
-- Takes running jobs from workers that are dead or unknown. The worker who died is the detail. A
-- loss in company accuses nobody: before one would end it, a job is claimed alone (job_claim).
-- postgres
WITH lost AS MATERIALIZED (
  SELECT job.id, job.fence, (cancel_reason IS NOT NULL OR coalesce((SELECT run.state = 'STOPPING' FROM run WHERE run.id = job.run_id), false)) AS stopped,
         coalesce(phase = 'REQUESTING' AND policy = 'fail_unknown', false) AS unknown,
         coalesce((SELECT CASE WHEN exit_code < 0 THEN 'its process was killed by signal ' || -exit_code
                               WHEN exit_code IS NOT NULL THEN 'its process ended with code ' || exit_code
                               ELSE 'nothing was heard of its worker for '
                                    || round(extract(epoch FROM {now} - heartbeat_at)) || ' s' END
                          FROM worker WHERE worker.id = job.worker_id), 'its worker is unknown') AS how,
         (SELECT count(*) FROM (SELECT 1 FROM job other
                                 WHERE other.worker_id = job.worker_id AND other.state = 'RUNNING'
                                   AND other.id <> job.id LIMIT 1000) AS counted) AS others,
         job.losses + 1 >= job.poison_limit
         AND NOT EXISTS (SELECT 1 FROM job other
                          WHERE other.worker_id = job.worker_id AND other.state = 'RUNNING'
                            AND other.id <> job.id) AS poisoned
    FROM job
   WHERE job.state = 'RUNNING'
     AND NOT EXISTS (SELECT 1 FROM worker WHERE worker.id = job.worker_id AND worker.state <> 'STOPPED')
   ORDER BY job.worker_id
   LIMIT :most
     FOR UPDATE OF job SKIP LOCKED
)
UPDATE job
   SET state = CASE WHEN lost.stopped THEN 'CANCELLED'
                    WHEN coalesce(deadline_at <= {now}, false) THEN 'FAILED'
                    WHEN lost.unknown OR lost.poisoned OR {over} >= 0 THEN 'FAILED'
                    ELSE 'RETRYING' END,
       move = CASE WHEN lost.stopped THEN 'cancel'
                   WHEN coalesce(deadline_at <= {now}, false) THEN 'expire'
                   ELSE 'lose' END,
       cause = CASE WHEN lost.stopped THEN NULL
                    WHEN coalesce(deadline_at <= {now}, false) THEN 'deadline'
                    WHEN lost.unknown THEN 'outcome_unknown'
                    WHEN lost.poisoned THEN 'poisoned'
                    WHEN {over} >= 0 THEN 'attempts_exhausted' END,
       losses = losses + CASE WHEN lost.stopped OR coalesce(deadline_at <= {now}, false) THEN 0 ELSE 1 END,
       -- Sent, perhaps, and never heard of: another attempt might do it twice (H-91).
       error = CASE WHEN lost.stopped OR coalesce(deadline_at <= {now}, false) THEN error
                    WHEN lost.unknown
                    THEN '{"type":"OutcomeUnknown","message":"the worker died after the request was about to be sent and before its answer was recorded: ask the remote whether it was done, then rerun the job or leave it","kind":"permanent","code":"outcome_unknown"}'
                    ELSE '{"type":"Lost","message":"' || lost.how
                         || CASE lost.others WHEN 0 THEN ' while it ran alone'
                                 ELSE ' while it ran beside ' || lost.others || ' other jobs' END
                         || '; losses ' || (losses + 1) || ' (' || coalesce('recoveries ' || recoveries || ', ', '')
                         || 'poison_limit ' || poison_limit || '), errors '
                         || errors || ' (retries ' || retries || ')","kind":"lost","code":"lost","attempt":'
                         || (errors + losses + 1) || '}' END,
       error_type = CASE WHEN lost.stopped OR coalesce(deadline_at <= {now}, false) THEN error_type WHEN lost.unknown THEN 'OutcomeUnknown' ELSE 'Lost' END,
       error_code = CASE WHEN lost.stopped OR coalesce(deadline_at <= {now}, false) THEN error_code WHEN lost.unknown THEN 'outcome_unknown'
                         WHEN lost.poisoned THEN 'poisoned' ELSE 'lost' END,
       fingerprint = CASE WHEN lost.stopped OR coalesce(deadline_at <= {now}, false) THEN fingerprint
                          WHEN lost.unknown THEN 'OutcomeUnknown@' || kind ELSE 'Lost@' || kind END,
       finished_at = CASE WHEN lost.stopped OR lost.unknown OR coalesce(deadline_at <= {now}, false) OR lost.poisoned
                               OR {over} >= 0 THEN {now} END,
       due_at = {now}, delay_us = NULL, worker_id = NULL, version = version + 1, actor = :actor,
       detail = job.worker_id
  FROM lost
 WHERE job.id = lost.id AND lost.fence % 1 = 0
RETURNING job.id::text, job.run_id::text, job.step, job.state, job.detail
-- sqlite
UPDATE job
   SET state = CASE WHEN lost.stopped THEN 'CANCELLED'
                    WHEN lost.late OR lost.unknown OR lost.poisoned OR lost.spent THEN 'FAILED'
                    ELSE 'RETRYING' END,
       move = CASE WHEN lost.stopped THEN 'cancel' WHEN lost.late THEN 'expire' ELSE 'lose' END,
       cause = CASE WHEN lost.stopped THEN NULL
                    WHEN lost.late THEN 'deadline'
                    WHEN lost.unknown THEN 'outcome_unknown'
                    WHEN lost.poisoned THEN 'poisoned'
                    WHEN lost.spent THEN 'attempts_exhausted' END,
       losses = losses + CASE WHEN lost.stopped OR lost.late THEN 0 ELSE 1 END,
       -- Sent, perhaps, and never heard of: another attempt might do it twice (H-91).
       error = CASE WHEN lost.stopped OR lost.late THEN error
                    WHEN lost.unknown
                    THEN '{"type":"OutcomeUnknown","message":"the worker died after the request was about to be sent and before its answer was recorded: ask the remote whether it was done, then rerun the job or leave it","kind":"permanent","code":"outcome_unknown"}'
                    ELSE '{"type":"Lost","message":"' || lost.how
                         || CASE lost.others WHEN 0 THEN ' while it ran alone'
                                 ELSE ' while it ran beside ' || lost.others || ' other jobs' END
                         || '; losses ' || (losses + 1) || ' (' || coalesce('recoveries ' || recoveries || ', ', '')
                         || 'poison_limit ' || poison_limit || '), errors '
                         || errors || ' (retries ' || retries || ')","kind":"lost","code":"lost","attempt":'
                         || (errors + losses + 1) || '}' END,
       error_type = CASE WHEN lost.stopped OR lost.late THEN error_type WHEN lost.unknown THEN 'OutcomeUnknown' ELSE 'Lost' END,
       error_code = CASE WHEN lost.stopped OR lost.late THEN error_code WHEN lost.unknown THEN 'outcome_unknown'
                         WHEN lost.poisoned THEN 'poisoned' ELSE 'lost' END,
       fingerprint = CASE WHEN lost.stopped OR lost.late THEN fingerprint
                          WHEN lost.unknown THEN 'OutcomeUnknown@' || kind ELSE 'Lost@' || kind END,
       finished_at = CASE WHEN lost.stopped OR lost.late OR lost.unknown OR lost.poisoned OR lost.spent
                          THEN {now} END,
       due_at = {now}, worker_id = NULL, version = version + 1, actor = :actor,
       detail = job.worker_id
  FROM (SELECT job.rowid AS number,
               cancel_reason IS NOT NULL
               OR EXISTS (SELECT 1 FROM run WHERE run.id = job.run_id AND run.state = 'STOPPING')
               AS stopped,
               coalesce(deadline_at <= {now}, false) AS late,
               coalesce(phase = 'REQUESTING' AND policy = 'fail_unknown', false) AS unknown,
               coalesce((SELECT CASE WHEN exit_code < 0 THEN 'its process was killed by signal ' || -exit_code
                                     WHEN exit_code IS NOT NULL THEN 'its process ended with code ' || exit_code
                                     ELSE 'nothing was heard of its worker for '
                                          || (({now} - heartbeat_at) / 1000000) || ' s' END
                                FROM worker WHERE worker.id = job.worker_id), 'its worker is unknown') AS how,
               (SELECT count(*) FROM (SELECT 1 FROM job AS other
                                       WHERE other.worker_id = job.worker_id AND other.state = 'RUNNING'
                                         AND other.id <> job.id LIMIT 1000)) AS others,
               losses + 1 >= poison_limit
               AND NOT EXISTS (SELECT 1 FROM job AS other
                                WHERE other.worker_id = job.worker_id AND other.state = 'RUNNING'
                                  AND other.id <> job.id) AS poisoned,
               {over} >= 0 AS spent
          FROM job
         WHERE job.state = 'RUNNING'
           AND NOT EXISTS (SELECT 1 FROM worker
                            WHERE worker.id = job.worker_id AND worker.state <> 'STOPPED')
         ORDER BY job.worker_id
         LIMIT :most) AS lost
 WHERE job.rowid = lost.number
RETURNING id, run_id, step, state, detail

-- name: job_expire
-- Ends what missed its deadline, or missed its start, and is not running.
-- postgres
WITH late AS MATERIALIZED (
  SELECT id, fence FROM job
   WHERE (deadline_at IS NOT NULL OR start_by IS NOT NULL)
     AND state NOT IN {final}
     AND least(coalesce(deadline_at, start_by), coalesce(start_by, deadline_at)) <= {now}
     AND state <> 'RUNNING'
     AND (deadline_at <= {now} OR (start_by <= {now} AND fence = 0))
   ORDER BY least(coalesce(deadline_at, start_by), coalesce(start_by, deadline_at))
   LIMIT :most
     FOR UPDATE SKIP LOCKED
)
UPDATE job
   SET state = 'FAILED', move = 'expire', cause = 'deadline', version = version + 1, actor = :actor,
       error_type = coalesce(error_type, 'deadline'), error_code = coalesce(error_code, 'deadline'),
       fingerprint = coalesce(fingerprint, 'deadline@' || kind),
       detail = CASE WHEN deadline_at <= {now} THEN 'deadline' ELSE 'start_within' END,
       finished_at = {now}
  FROM late
 WHERE job.id = late.id AND late.fence % 1 = 0
RETURNING job.id::text, job.run_id::text, job.step
-- sqlite
UPDATE job
   SET state = 'FAILED', move = 'expire', cause = 'deadline', version = version + 1, queued_seq = queued_seq, actor = :actor,
       error_type = coalesce(error_type, 'deadline'), error_code = coalesce(error_code, 'deadline'),
       fingerprint = coalesce(fingerprint, 'deadline@' || kind),
       detail = CASE WHEN deadline_at <= {now} THEN 'deadline' ELSE 'start_within' END,
       finished_at = {now}
 WHERE rowid IN (
         SELECT rowid FROM job
          WHERE (deadline_at IS NOT NULL OR start_by IS NOT NULL)
            AND state NOT IN {final}
            AND min(coalesce(deadline_at, start_by), coalesce(start_by, deadline_at)) <= {now}
            AND state <> 'RUNNING'
            AND (deadline_at <= {now} OR (start_by <= {now} AND fence = 0))
          LIMIT :most)
RETURNING id, run_id, step

-- name: job_expire_held
-- Ends held jobs that nobody submitted in time (H-108); those of a run wait for their run.
-- postgres
WITH late AS MATERIALIZED (
  SELECT id, fence FROM job
   WHERE state = 'CREATED' AND run_id IS NULL
     AND created_at <= {now} - :hold_us::bigint{micros}
   ORDER BY created_at
   LIMIT :most
     FOR UPDATE SKIP LOCKED
)
UPDATE job
   SET state = 'FAILED', move = 'expire', cause = 'deadline', version = version + 1, actor = :actor,
       error_type = coalesce(error_type, 'deadline'), error_code = coalesce(error_code, 'deadline'),
       fingerprint = coalesce(fingerprint, 'deadline@' || kind),
       detail = 'hold_limit', finished_at = {now}
  FROM late
 WHERE job.id = late.id AND late.fence % 1 = 0
RETURNING job.id::text
-- sqlite
UPDATE job
   SET state = 'FAILED', move = 'expire', cause = 'deadline', version = version + 1, queued_seq = queued_seq, actor = :actor,
       error_type = coalesce(error_type, 'deadline'), error_code = coalesce(error_code, 'deadline'),
       fingerprint = coalesce(fingerprint, 'deadline@' || kind),
       detail = 'hold_limit', finished_at = {now}
 WHERE rowid IN (
         SELECT rowid FROM job
          WHERE state = 'CREATED' AND run_id IS NULL AND created_at <= {now} - :hold_us
          ORDER BY created_at
          LIMIT :most)
RETURNING id

-- name: job_reject
UPDATE job
   SET state = 'FAILED', move = 'reject', cause = 'rejected', version = version + 1, queued_seq = queued_seq,
       error_type = coalesce(error_type, 'rejected'), error_code = coalesce(error_code, 'rejected'),
       fingerprint = coalesce(fingerprint, 'rejected@' || kind),
       actor = :actor, detail = :reason, finished_at = {now}
 WHERE id = :id AND state IN {pending}
RETURNING {text:id}, {text:run_id}, step

-- name: job_reject_spent
-- No job stays claimable with a spent budget (H-21).
-- postgres
-- The planner believes that a third of all have spent theirs: with a limit in the first part it
-- would walk the table to find the next few at once, and mostly there are none. (`% 1 = 0` is
-- always true: it makes it look each up by its id.)
WITH spent AS MATERIALIZED (
  SELECT id, {spent} AS spent FROM job
   WHERE {at_limit}
     AND state IN {pending}
), picked AS MATERIALIZED (
  SELECT id, fence FROM job
   WHERE id = ANY (ARRAY(SELECT id FROM spent WHERE spent LIMIT :most))
     AND {spent} AND state IN {pending}
     FOR UPDATE SKIP LOCKED
)
UPDATE job
   SET state = 'FAILED', move = 'reject', cause = 'attempts_exhausted', version = version + 1,
       error_type = coalesce(error_type, 'attempts_exhausted'), error_code = coalesce(error_code, 'attempts_exhausted'),
       fingerprint = coalesce(fingerprint, 'attempts_exhausted@' || kind),
       actor = :actor, detail = 'budget spent', finished_at = {now}
  FROM picked
 WHERE job.id = picked.id AND picked.fence % 1 = 0
RETURNING job.id::text, job.run_id::text, job.step
-- sqlite
UPDATE job
   SET state = 'FAILED', move = 'reject', cause = 'attempts_exhausted', version = version + 1, queued_seq = queued_seq,
       error_type = coalesce(error_type, 'attempts_exhausted'), error_code = coalesce(error_code, 'attempts_exhausted'),
       fingerprint = coalesce(fingerprint, 'attempts_exhausted@' || kind),
       actor = :actor, detail = 'budget spent', finished_at = {now}
 WHERE rowid IN (SELECT rowid FROM job
                  WHERE {at_limit}
                    AND state IN {pending}
                    AND {spent}
                  LIMIT :most)
RETURNING id, run_id, step

-- name: failure_ended
-- Keeps why jobs were lost, or ended without an attempt that failed: as every failure it has its group.
-- postgres
INSERT INTO failure (job_id, fence, at, error, fingerprint)
SELECT id, fence, {now},
       CASE move WHEN 'lose' THEN error
                 ELSE '{"type":"' || cause || '","message":"' || :text::text || '","kind":"permanent","code":"' || cause || '"}' END,
       fingerprint
  FROM job
 WHERE id = ANY (ARRAY(SELECT unnest(:id::uuid[])))
   AND move IN ('lose', 'expire', 'reject') AND fingerprint IS NOT NULL
    ON CONFLICT DO NOTHING
-- sqlite: each
INSERT INTO failure (job_id, fence, at, error, fingerprint)
SELECT id, fence, {now},
       CASE move WHEN 'lose' THEN error
                 ELSE '{"type":"' || cause || '","message":"' || :text || '","kind":"permanent","code":"' || cause || '"}' END,
       fingerprint
  FROM job
 WHERE id = :id
   AND move IN ('lose', 'expire', 'reject') AND fingerprint IS NOT NULL
    ON CONFLICT DO NOTHING

-- name: maintain_due
-- The chores of maintenance that have something to do; one that is not named would move nothing.
-- Each begins along an index, whatever there is: where only the first row counts a planner would rather walk the table.
-- postgres
SELECT 'bury' WHERE EXISTS (SELECT 1 FROM worker WHERE state <> 'STOPPED' AND lease_until <= {now})
UNION ALL
SELECT 'lose' WHERE EXISTS (SELECT 1 FROM (SELECT DISTINCT worker_id FROM job WHERE state = 'RUNNING') AS held
                             WHERE NOT EXISTS (SELECT 1 FROM worker WHERE worker.id = held.worker_id
                                                                      AND worker.state <> 'STOPPED'))
UNION ALL
SELECT 'expire' WHERE (SELECT min(least(coalesce(deadline_at, start_by), coalesce(start_by, deadline_at))) FROM job
                        WHERE (deadline_at IS NOT NULL OR start_by IS NOT NULL) AND state NOT IN {final}) <= {now}
UNION ALL
(WITH spent AS MATERIALIZED (SELECT {spent} AS spent FROM job WHERE {at_limit} AND state IN {pending})
SELECT 'reject' WHERE EXISTS (SELECT 1 FROM spent WHERE spent))
UNION ALL
SELECT 'wake' WHERE (SELECT min(due_at) FROM job WHERE state IN {sleeping}) <= {now}
                 OR EXISTS (SELECT 1 FROM job WHERE state IN {sleeping} AND due_at IS NULL AND state || '' = 'RETRYING')
UNION ALL
SELECT 'expire_held' WHERE (SELECT min(created_at) FROM job WHERE state = 'CREATED' AND run_id IS NULL)
                           <= {now} - :hold_us::bigint{micros}
UNION ALL
SELECT 'undispatch' WHERE EXISTS (SELECT 1 FROM hint WHERE created_at <= {now} - :hint_us::bigint{micros})
UNION ALL
SELECT 'dispatch' WHERE (SELECT min(queue) FROM job WHERE state = 'READY') IS NOT NULL
UNION ALL
SELECT 'forget' WHERE (SELECT min(due_at) FROM run WHERE state = 'CREATED') <= {now}
UNION ALL
SELECT 'expire_runs' WHERE (SELECT min(deadline_at) FROM run WHERE state IN {active}) <= {now}
UNION ALL
SELECT 'look_at_runs' WHERE EXISTS (SELECT 1 FROM run WHERE state NOT IN {final})
UNION ALL
SELECT 'alert' WHERE EXISTS (SELECT 1 FROM pipeline WHERE fresh_us IS NOT NULL OR stale_at IS NOT NULL)
UNION ALL
SELECT 'sweep' WHERE EXISTS (SELECT 1 FROM staged)
                  OR EXISTS (SELECT 1 FROM worker WHERE state = 'STOPPED' AND heartbeat_at < {now} - :keep_us::bigint{micros})
                  OR (SELECT min(free_at) FROM bucket) < {now} - interval '1 minute'
UNION ALL
SELECT 'fold' WHERE (SELECT at FROM tally_delta LIMIT 1) <= {now} - :fold_us::bigint{micros}
                 OR EXISTS (SELECT 1 FROM failure_delta)
                 OR (SELECT min(at) FROM tally WHERE span = :minute::integer) <= {now} - :roll_us::bigint{micros}
-- sqlite
SELECT 'bury' WHERE EXISTS (SELECT 1 FROM worker WHERE state <> 'STOPPED' AND lease_until <= {now})
UNION ALL
SELECT 'lose' WHERE EXISTS (SELECT 1 FROM job WHERE state = 'RUNNING'
                               AND NOT EXISTS (SELECT 1 FROM worker WHERE worker.id = job.worker_id
                                                                      AND worker.state <> 'STOPPED'))
UNION ALL
SELECT 'expire' WHERE EXISTS (SELECT 1 FROM job
                               WHERE (deadline_at IS NOT NULL OR start_by IS NOT NULL) AND state NOT IN {final}
                                 AND min(coalesce(deadline_at, start_by), coalesce(start_by, deadline_at)) <= {now})
UNION ALL
SELECT 'reject' WHERE EXISTS (SELECT 1 FROM job WHERE {at_limit} AND state IN {pending} AND {spent})
UNION ALL
SELECT 'wake' WHERE EXISTS (SELECT 1 FROM job WHERE state IN {sleeping} AND due_at <= {now})
                 OR EXISTS (SELECT 1 FROM job WHERE state IN {sleeping} AND due_at IS NULL AND state = 'RETRYING')
UNION ALL
SELECT 'expire_held' WHERE EXISTS (SELECT 1 FROM job WHERE state = 'CREATED' AND run_id IS NULL
                                                       AND created_at <= {now} - :hold_us)
UNION ALL
SELECT 'undispatch' WHERE EXISTS (SELECT 1 FROM hint WHERE created_at <= {now} - :hint_us)
UNION ALL
SELECT 'dispatch' WHERE EXISTS (SELECT 1 FROM job WHERE state = 'READY')
UNION ALL
SELECT 'forget' WHERE EXISTS (SELECT 1 FROM run WHERE state = 'CREATED' AND due_at <= {now})
UNION ALL
SELECT 'expire_runs' WHERE EXISTS (SELECT 1 FROM run WHERE state IN {active} AND deadline_at <= {now})
UNION ALL
SELECT 'look_at_runs' WHERE EXISTS (SELECT 1 FROM run WHERE state NOT IN {final})
UNION ALL
SELECT 'alert' WHERE EXISTS (SELECT 1 FROM pipeline WHERE fresh_us IS NOT NULL OR stale_at IS NOT NULL)
UNION ALL
SELECT 'sweep' WHERE EXISTS (SELECT 1 FROM staged)
                  OR EXISTS (SELECT 1 FROM worker WHERE state = 'STOPPED' AND heartbeat_at < {now} - :keep_us)
                  OR (SELECT min(free_at) FROM bucket) < {now} - 60000000
UNION ALL
SELECT 'fold' WHERE (SELECT at FROM tally_delta LIMIT 1) <= {now} - :fold_us
                 OR (SELECT created_at FROM job WHERE rowid > (SELECT number FROM tally_mark)
                      ORDER BY rowid LIMIT 1) <= {now} - :fold_us
                 OR (SELECT min(at) FROM tally WHERE span = :minute) <= {now} - :roll_us
