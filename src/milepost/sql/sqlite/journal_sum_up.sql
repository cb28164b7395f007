-- Makes one entry of each of these jobs the snapshot of itself and all before it; what is summed up
-- leaves by the next statement. The trigger on the journal lets exactly this text pass. A row that
-- leaves it to the journal when it started or ended keeps its whole history.
UPDATE journal
   SET move = 'snapshot', from_state = NULL, detail = (
   SELECT json_object(
            'moves', sum(CASE e.move WHEN 'snapshot' THEN json_extract(e.detail, '$.moves') ELSE 1 END),
            'since', coalesce(
              max(CASE e.move WHEN 'snapshot' THEN json_extract(e.detail, '$.since') END), min(e.at)),
            'errors', sum(CASE WHEN e.move IN ('retry', 'fail') THEN 1
                               WHEN e.move = 'snapshot' THEN json_extract(e.detail, '$.errors') ELSE 0 END),
            'losses', sum(CASE e.move WHEN 'lose' THEN 1
                               WHEN 'snapshot' THEN json_extract(e.detail, '$.losses') ELSE 0 END),
            'polls', sum(CASE e.move WHEN 'later' THEN 1
                              WHEN 'snapshot' THEN json_extract(e.detail, '$.polls') ELSE 0 END),
            'releases', sum(CASE e.move WHEN 'release' THEN 1
                                 WHEN 'snapshot' THEN json_extract(e.detail, '$.releases') ELSE 0 END),
            'worker', (SELECT CASE c.move WHEN 'claim' THEN c.actor
                                          ELSE json_extract(c.detail, '$.worker') END
                         FROM journal c
                        WHERE c.subject_id = journal.subject_id AND c.machine = 'job' AND c.seq <= journal.seq
                          AND c.move IN ('claim', 'snapshot')
                        ORDER BY c.seq DESC LIMIT 1),
            'move', journal.move, 'detail', journal.detail)
     FROM journal e
    WHERE e.subject_id = journal.subject_id AND e.machine = 'job' AND e.seq <= journal.seq)
  FROM (SELECT job.id,
               (SELECT CASE WHEN count(*) > 1 THEN max(seq) END
                  FROM (SELECT seq, at FROM journal WHERE subject_id = job.id AND machine = 'job'
                         ORDER BY seq LIMIT :most + 1) AS oldest
                 WHERE at < {now} - :history_us) AS upto
          FROM job
         WHERE job.id IN (SELECT value FROM json_each(:id))
           AND (started_at IS NOT NULL OR fence = 0)
           AND (finished_at IS NOT NULL OR state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED'))
           AND move <> 'erase') AS due
 WHERE journal.subject_id = due.id AND journal.machine = 'job' AND journal.seq = due.upto
RETURNING subject_id
