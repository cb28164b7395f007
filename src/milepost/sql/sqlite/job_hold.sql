-- Holds a job for the rest of the transaction. No row back means the lease was lost.
SELECT fence FROM job WHERE id = :id AND fence = :fence AND state = 'RUNNING'
