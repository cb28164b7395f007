-- Makes one entry of each of these jobs the snapshot of itself and all before it; what is summed up
-- leaves by the next statement. The trigger on the journal lets only what the view says pass. A row that
-- leaves it to the journal when it started or ended keeps its whole history.
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
           AND (finished_at IS NOT NULL OR state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED'))
           AND move <> 'erase') AS due
 WHERE journal.subject_id = due.id AND journal.machine = 'job' AND journal.seq = due.upto
RETURNING subject_id
