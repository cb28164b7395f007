-- Records a phase of a running attempt. No row back means the lease was lost.
UPDATE job
   SET move = 'note', version = version + 1, phase = :phase, detail = :detail, actor = :actor
 WHERE id = :id AND fence = :fence AND state = 'RUNNING'
RETURNING version
