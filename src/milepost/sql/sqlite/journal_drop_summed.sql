DELETE FROM journal
 WHERE subject_id IN (SELECT value FROM json_each(:id)) AND machine = 'job'
   AND seq < (SELECT s.seq FROM journal s
               WHERE s.subject_id = journal.subject_id AND s.machine = 'job' AND s.move = 'snapshot'
               ORDER BY s.seq DESC LIMIT 1)
