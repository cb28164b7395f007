-- each: notes on a job that is held which page was stored.
UPDATE job
   SET move = 'note', version = version + 1, phase = 'page ' || :number, detail = :detail,
       actor = :actor
 WHERE id = :id AND fence = :fence AND state = 'RUNNING'
