-- Only a loss alone makes a job poisoned. (A claim that was summed up with older history is unknown.)
SELECT {text:job.id}
  FROM job
  JOIN journal ON journal.subject_id = job.id AND journal.machine = 'job' AND journal.move = 'claim'
   AND journal.fence = job.fence
 WHERE job.state = 'FAILED' AND job.move = 'lose' AND job.cause = 'poisoned'
   AND (journal.detail IS NULL OR journal.detail <> 'alone')
 ORDER BY job.id
