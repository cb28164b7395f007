-- The journal: its pages, its weeks, and summing it up.

-- name: journal_page
-- The moves after one, and what went before them without its details: who counts attempts needs it.
-- The page ends before the first move that stands behind more than :most_bytes of details; how many
-- there were before the cut stands in the last column.
WITH listed AS (
SELECT seq, coalesce(length(detail), 0) AS size
  FROM journal
 WHERE subject_id = :id AND machine = :machine AND seq > :after
 ORDER BY seq
 LIMIT :most
), fitting AS (
SELECT seq, sum(size) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - size AS ahead FROM listed
)
SELECT seq, move, from_state, to_state, fence, at, actor,
       CASE WHEN seq > :after OR move = 'snapshot' THEN detail END,
       (SELECT count(*) FROM listed)
  FROM journal
 WHERE subject_id = :id AND machine = :machine
   AND seq <= (SELECT max(seq) FROM fitting WHERE ahead < :most_bytes)
 ORDER BY seq

-- name: journal_entries
SELECT seq, move, from_state, to_state, fence, at, actor, detail, {db_user}
  FROM journal
 WHERE subject_id = :id AND machine = :machine
 ORDER BY seq

-- name: journal_queue
-- How many jobs of a queue stood in each state at a time: what the last entry until then says.
SELECT journal.to_state, count(*)
  FROM job JOIN journal ON journal.subject_id = job.id AND journal.machine = 'job'
   AND journal.seq = (SELECT max(until.seq) FROM journal AS until
                       WHERE until.subject_id = job.id AND until.machine = 'job'
                         AND until.at <= :moment)
 WHERE job.queue = :queue
 GROUP BY journal.to_state
 ORDER BY journal.to_state

-- name: journal_count
SELECT count(*) FROM journal

-- name: journal_summable
-- A page of old jobs, in the order of their ids: of whose history is more than one entry too old? A
-- lone snapshot is not. A row that leaves it to the journal when it started or ended stays as it is.
-- postgres
SELECT job.id::text,
       (SELECT at FROM journal WHERE subject_id = job.id AND machine = 'job' ORDER BY seq OFFSET 1 LIMIT 1)
       < {now} - greatest(:history_us::bigint, (SELECT least_us FROM retention)){micros}
       AND (job.started_at IS NOT NULL OR job.fence = 0)
       AND (job.finished_at IS NOT NULL OR job.state NOT IN {final})
       AND job.move <> 'erase'
  FROM (SELECT id, state, fence, move, started_at, finished_at FROM job
         WHERE id > :after::uuid
         ORDER BY id
         LIMIT :most) AS job
 WHERE job.id < :before::uuid
-- sqlite
SELECT job.id,
       (SELECT at FROM journal WHERE subject_id = job.id AND machine = 'job' ORDER BY seq LIMIT 1 OFFSET 1)
       < {now} - max(:history_us, (SELECT least_us FROM retention))
       AND (job.started_at IS NOT NULL OR job.fence = 0)
       AND (job.finished_at IS NOT NULL OR job.state NOT IN {final})
       AND job.move <> 'erase'
  FROM (SELECT id, state, fence, move, started_at, finished_at FROM job
         WHERE id > :after
         ORDER BY id
         LIMIT :most) AS job
 WHERE job.id < :before

-- name: journal_sum_up
-- postgres
-- The owner's trigger does it, and answers with those of which anything was summed up.
INSERT INTO journal_upkeep (task, subject_id, before, most)
SELECT 'sum up', due.id, {now} - :history_us::bigint{micros}, :most
  FROM unnest(:id::uuid[]) AS due (id)
RETURNING subject_id::text
-- sqlite
-- Makes one entry of each of these jobs the snapshot of itself and all before it; what is summed up
-- leaves by the next statement. The trigger on the journal lets only what the view says pass. A row
-- that leaves it to the journal when it started or ended keeps its whole history.
UPDATE journal
   SET move = 'snapshot', from_state = NULL,
       detail = (SELECT told FROM journal_summary AS summary
                  WHERE summary.subject_id = journal.subject_id AND summary.seq = journal.seq)
  FROM (SELECT job.id,
               (SELECT CASE WHEN count(*) > 1 THEN max(seq) END
                  FROM (SELECT seq, at FROM journal WHERE subject_id = job.id AND machine = 'job'
                         ORDER BY seq LIMIT :most + 1) AS oldest
                 WHERE at < {now} - max(:history_us, (SELECT least_us FROM retention))) AS upto
          FROM job
         WHERE job.id IN (SELECT value FROM json_each(:id))
           AND (started_at IS NOT NULL OR fence = 0)
           AND (finished_at IS NOT NULL OR state NOT IN {final})
           AND move <> 'erase') AS due
 WHERE journal.subject_id = due.id AND journal.machine = 'job' AND journal.seq = due.upto
RETURNING subject_id

-- name: journal_drop_summed
-- postgres
-- They left as they were summed up.
SELECT 1 WHERE cardinality(:id::uuid[]) < 0
-- sqlite
DELETE FROM journal
 WHERE subject_id IN (SELECT value FROM json_each(:id)) AND machine = 'job'
   AND seq < (SELECT s.seq FROM journal s
               WHERE s.subject_id = journal.subject_id AND s.machine = 'job' AND s.move = 'snapshot'
               ORDER BY s.seq DESC LIMIT 1)

-- name: journal_make_weeks
-- postgres
-- Partitions of the journal for this week and so many of the next.
INSERT INTO journal_upkeep (task, most) VALUES ('make weeks', :ahead) RETURNING done
-- sqlite
-- There are no partitions here.
SELECT 1 WHERE :ahead < 0

-- name: journal_weeks_full
-- postgres
-- How large the default partition is, where it is so large that no more weeks are made.
SELECT size FROM milepost_default_size() AS size WHERE size > milepost_default_most()
-- sqlite
-- There are no partitions here.
SELECT 1 WHERE false

-- name: journal_drop_week
-- postgres
-- The oldest partition of which nearly nothing is left.
INSERT INTO journal_upkeep (task, before, most)
VALUES ('drop a week', {now} - :history_us::bigint{micros}, :most)
RETURNING done
-- sqlite
-- There are no partitions here.
SELECT 1 WHERE :history_us < 0 AND :most < 0

-- name: journal_patience
-- postgres
-- For this transaction: a partition is not worth a long wait.
SELECT set_config('statement_timeout', '5s', true)
-- sqlite
SELECT 1
