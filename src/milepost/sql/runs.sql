-- Runs as they are created and looked at.

-- name: run_create
-- postgres
-- Waits for a rival's transaction: no row back means that the rival is there, and committed.
INSERT INTO run (id, kind, kind_version, state, move, actor, payload, codec, policy, queue, priority,
                 tenant, unique_key, params_key, tags, trace, channel, mode, parent_id, rerun_of, resumes,
                 ordinal, depth, watermark_before, deadline_at, due_at, created_at)
VALUES (:id, :kind, :kind_version, :state, 'create', :actor, :payload, :codec, :policy, :queue,
        :priority, :tenant, :unique_key, :params_key, :tags::jsonb, :trace, :channel, :mode, :parent_id,
        :rerun_of, :resumes, :ordinal, :depth, :watermark_before::timestamptz,
        {now} + :deadline_us::bigint{micros}, {now} + :hold_us::bigint{micros}, {now})
ON CONFLICT (tenant, kind, unique_key)
  WHERE unique_key IS NOT NULL AND state NOT IN {final}
  DO NOTHING
RETURNING id::text
-- sqlite
INSERT INTO run (id, kind, kind_version, state, move, actor, payload, codec, policy, queue, priority,
                 tenant, unique_key, params_key, tags, trace, channel, mode, parent_id, rerun_of, resumes,
                 ordinal, depth, watermark_before, deadline_at, due_at, created_at)
VALUES (:id, :kind, :kind_version, :state, 'create', :actor, :payload, :codec, :policy, :queue,
        :priority, :tenant, :unique_key, :params_key, :tags, :trace, :channel, :mode, :parent_id,
        :rerun_of, :resumes, :ordinal, :depth, :watermark_before,
        {now} + :deadline_us{micros}, {now} + :hold_us{micros}, {now})
RETURNING id

-- name: run_live_by_key
SELECT {text:id} FROM run
 WHERE tenant = :tenant AND kind = :kind AND unique_key = :unique_key
   AND state NOT IN {final}

-- name: run_reusable
-- The newest run with these parameters that goes on, however it was started (H-106).
SELECT {text:id} FROM run
 WHERE tenant = :tenant AND kind = :kind AND params_key = :params_key
   AND state NOT IN {final} AND state <> 'STOPPING'
 ORDER BY run.id DESC
 LIMIT 1

-- name: run_standing
-- postgres
SELECT id::text, state FROM run WHERE id = ANY(:id::uuid[])
-- sqlite
SELECT id, state FROM run WHERE id IN (SELECT value FROM json_each(:id))

-- name: run_get
SELECT {columns:run}
  FROM run
 WHERE id = :id

-- name: run_list
-- Newest first; the cursor is the last id seen. A page ends before the first row that stands behind
-- more than :most_bytes of content: it is cut here, so that nobody reads what nobody is told. How many
-- there were before the cut stands in the last column.
-- postgres
WITH listed AS (
SELECT id, coalesce(octet_length(payload), 0) + coalesce(octet_length(report), 0) + coalesce(octet_length(error), 0) AS size
  FROM run
 WHERE (:state::text IS NULL OR state = :state::text)
   AND (:kind::text IS NULL OR kind = :kind::text)
   AND (:tenant::text IS NULL OR tenant = :tenant::text)
   AND (:states::text IS NULL OR state IN (SELECT jsonb_array_elements_text(:states::text::jsonb)))
   AND (:queues::text IS NULL OR queue IN (SELECT jsonb_array_elements_text(:queues::text::jsonb)))
   AND (:before::uuid IS NULL OR run.id < :before::uuid)
 ORDER BY run.id DESC
 LIMIT :most
), fitting AS (
SELECT id, sum(size) OVER (ORDER BY id DESC ROWS UNBOUNDED PRECEDING) - size AS ahead FROM listed
)
SELECT {columns:run}, (SELECT count(*) FROM listed)
  FROM run
 WHERE id = ANY(ARRAY(SELECT id FROM fitting WHERE :most_bytes::bigint IS NULL OR ahead < :most_bytes::bigint))
 ORDER BY run.id DESC
-- sqlite
WITH listed AS (
SELECT id, coalesce(length(payload), 0) + coalesce(length(report), 0) + coalesce(length(error), 0) AS size
  FROM run
 WHERE (:state IS NULL OR state = :state)
   AND (:kind IS NULL OR kind = :kind)
   AND (:tenant IS NULL OR tenant = :tenant)
   AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
   AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
   AND (:before IS NULL OR run.id < :before)
 ORDER BY run.id DESC
 LIMIT :most
), fitting AS (
SELECT id, sum(size) OVER (ORDER BY id DESC ROWS UNBOUNDED PRECEDING) - size AS ahead FROM listed
)
SELECT {columns:run}, (SELECT count(*) FROM listed)
  FROM run
 WHERE id IN (SELECT id FROM fitting WHERE :most_bytes IS NULL OR ahead < :most_bytes)
 ORDER BY run.id DESC

-- name: run_within
-- postgres
SELECT id::text FROM run WHERE id BETWEEN :low::uuid AND :high::uuid ORDER BY run.id LIMIT :most
-- sqlite
SELECT id FROM run WHERE id BETWEEN :low AND :high ORDER BY id LIMIT :most

-- name: run_live
-- A page of the runs that maintenance looks at, in the order of their ids.
-- postgres
SELECT id::text, state FROM run
 WHERE state NOT IN {final} AND (:after::uuid IS NULL OR run.id > :after::uuid)
 ORDER BY run.id
 LIMIT :most
-- sqlite
SELECT id, state FROM run
 WHERE state NOT IN {final} AND (:after IS NULL OR run.id > :after)
 ORDER BY run.id
 LIMIT :most

-- name: run_kinds
SELECT kind, state, count(*) FROM run GROUP BY kind, state ORDER BY kind, state

-- name: run_counts
-- The jobs of runs by step and state. What is final is taken from the counters of the steps, so
-- that looking at a run does not cost more the longer it has been running. Without a step: how many
-- of all have ever failed or been lost; an index has those.
-- postgres
SELECT run_id::text, step, state, count(*) FROM job
 WHERE run_id = ANY (ARRAY(SELECT unnest(:id::uuid[]))) AND state IN {unclaimed}
 GROUP BY run_id, step, state
UNION ALL
SELECT run_id::text, step, 'RUNNING', count(*) FROM job
 WHERE run_id = ANY (ARRAY(SELECT unnest(:id::uuid[]))) AND state = 'RUNNING'
 GROUP BY run_id, step
UNION ALL
SELECT run_id::text, step, 'SUCCEEDED', sum(succeeded)::bigint FROM step_count
 WHERE run_id = ANY (ARRAY(SELECT unnest(:id::uuid[])))
 GROUP BY run_id, step HAVING sum(succeeded) > 0
UNION ALL
SELECT run_id::text, step, 'FAILED', sum(failed)::bigint FROM step_count
 WHERE run_id = ANY (ARRAY(SELECT unnest(:id::uuid[])))
 GROUP BY run_id, step HAVING sum(failed) > 0
UNION ALL
SELECT run_id::text, step, 'CANCELLED', sum(cancelled)::bigint FROM step_count
 WHERE run_id = ANY (ARRAY(SELECT unnest(:id::uuid[])))
 GROUP BY run_id, step HAVING sum(cancelled) > 0
UNION ALL
SELECT run_id::text, NULL, NULL, count(*) FROM job
 WHERE run_id = ANY (ARRAY(SELECT unnest(:id::uuid[]))) AND (errors + losses > 0 OR state = 'FAILED')
 GROUP BY run_id
UNION ALL
SELECT parent_id::text, NULL, NULL, count(*) FROM run
 WHERE parent_id = ANY (ARRAY(SELECT unnest(:id::uuid[]))) AND state = 'FAILED'
 GROUP BY parent_id
UNION ALL
SELECT parent_id::text, 0, CASE state WHEN 'CREATED' THEN state WHEN 'QUEUED' THEN state ELSE 'RUNNING' END, count(*)
  FROM run
 WHERE parent_id = ANY (ARRAY(SELECT unnest(:id::uuid[]))) AND state NOT IN {final}
 GROUP BY 1, 3
-- sqlite: each
SELECT run_id, step, state, count(*) FROM job
 WHERE run_id = :id AND state IN {open}
 GROUP BY run_id, step, state
UNION ALL
SELECT run_id, step, 'SUCCEEDED', sum(succeeded) FROM step_count WHERE run_id = :id
 GROUP BY run_id, step HAVING sum(succeeded) > 0
UNION ALL
SELECT run_id, step, 'FAILED', sum(failed) FROM step_count WHERE run_id = :id
 GROUP BY run_id, step HAVING sum(failed) > 0
UNION ALL
SELECT run_id, step, 'CANCELLED', sum(cancelled) FROM step_count WHERE run_id = :id
 GROUP BY run_id, step HAVING sum(cancelled) > 0
UNION ALL
SELECT run_id, NULL, NULL, count(*) FROM job
 WHERE run_id = :id AND (errors + losses > 0 OR state = 'FAILED')
 GROUP BY run_id
UNION ALL
SELECT parent_id, NULL, NULL, count(*) FROM run WHERE parent_id = :id AND state = 'FAILED'
 GROUP BY parent_id
UNION ALL
SELECT parent_id, 0, CASE state WHEN 'CREATED' THEN state WHEN 'QUEUED' THEN state ELSE 'RUNNING' END, count(*)
  FROM run
 WHERE parent_id = :id AND state NOT IN {final}
 GROUP BY 1, 3

-- name: run_results
-- postgres
-- The index has run, step and state first, then the id: a page is read in order and no further. (By
-- the state too, though it is one: only that index has both. By `job.id`: a plain `id` would be the
-- text that is answered, and everything would be sorted.)
SELECT id::text, result,
       CASE WHEN result IS NULL
            THEN EXISTS (SELECT 1 FROM job_output o WHERE o.job_id = job.id AND o.fence = job.fence)
            ELSE false END
  FROM job
 WHERE run_id = :run_id AND step = :step AND state BETWEEN 'SUCCEEDED' AND 'SUCCEEDED'
   AND id > coalesce(:after::uuid, '00000000-0000-0000-0000-000000000000')
 ORDER BY job.state, job.id
 LIMIT :most
-- sqlite
-- What gave several results has none on its row.
SELECT id, result,
       CASE WHEN result IS NULL
            THEN EXISTS (SELECT 1 FROM job_output o WHERE o.job_id = job.id AND o.fence = job.fence)
            ELSE 0 END
  FROM job INDEXED BY job_run
 WHERE run_id = :run_id AND step = :step AND state = 'SUCCEEDED' AND id > coalesce(:after, '')
 ORDER BY id
 LIMIT :most

-- name: run_errors
-- Jobs that failed, and batches within a batch that did: those are told by their own children.
SELECT * FROM (
  SELECT {text:job.id}, step.name, job.ordinal, job.cause, job.error, false
    FROM job JOIN step ON step.run_id = job.run_id AND step.number = job.step
   WHERE job.run_id = :id AND job.state = 'FAILED'
   ORDER BY job.id
   LIMIT :most) AS jobs
UNION ALL
SELECT * FROM (
  SELECT {text:run.id}, 'batch', run.ordinal, run.cause, NULL, true
    FROM run
   WHERE run.parent_id = :id AND run.state = 'FAILED'
   ORDER BY run.id
   LIMIT :most) AS batches

-- name: run_cancelled
-- Items of a run whose policy was broken that somebody cancelled, as far as a thousand tell: an item
-- that the run's own end cancelled has no reason.
SELECT * FROM (
  SELECT {text:few.id}, step.name, few.ordinal, few.cancel_reason, false
    FROM (SELECT id, step, ordinal, cancel_reason FROM job
           WHERE run_id = :id AND state = 'CANCELLED' LIMIT 1000) AS few
    JOIN step ON step.run_id = :id AND step.number = few.step
   WHERE few.cancel_reason IS NOT NULL
     AND EXISTS (SELECT 1 FROM run WHERE id = :id AND cause = 'policy')
   ORDER BY few.id
   LIMIT :most) AS jobs
UNION ALL
SELECT * FROM (
  SELECT {text:run.id}, 'batch', run.ordinal, NULL, true
    FROM run
   WHERE run.parent_id = :id AND run.state = 'CANCELLED'
     AND EXISTS (SELECT 1 FROM run AS parent WHERE parent.id = :id AND parent.cause = 'policy')
   ORDER BY run.id
   LIMIT :most) AS batches

-- name: run_tree
-- A batch and those within it, the deepest first.
-- postgres
-- For the planner: OFFSET keeps it from reading all runs into a hash.
WITH RECURSIVE tree (id, parent_id, depth, state, resumes) AS (
  SELECT id, parent_id, depth, state, resumes FROM run WHERE id = :id
  UNION ALL
  SELECT child.id, child.parent_id, child.depth, child.state, child.resumes
    FROM tree CROSS JOIN LATERAL (SELECT * FROM run WHERE run.parent_id = tree.id OFFSET 0) child
)
SELECT id::text, parent_id::text, state, resumes::text FROM tree ORDER BY depth DESC, tree.id
-- sqlite
WITH RECURSIVE tree (id, parent_id, depth, state, resumes) AS (
  SELECT id, parent_id, depth, state, resumes FROM run WHERE id = :id
  UNION ALL
  SELECT run.id, run.parent_id, run.depth, run.state, run.resumes
    FROM tree JOIN run ON run.parent_id = tree.id
)
SELECT id, parent_id, state, resumes FROM tree ORDER BY depth DESC, id

-- name: run_lost_children
-- Batches within a batch that did not succeed.
SELECT {columns:run}
  FROM run
 WHERE parent_id = :id AND state IN {unsuccessful}
 ORDER BY run.id
