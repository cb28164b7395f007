UPDATE worker SET state = 'STOPPED', move = 'bury'
 WHERE id IN (SELECT id FROM worker WHERE state <> 'STOPPED' AND lease_until <= {now}
               ORDER BY id LIMIT :most)
RETURNING id
