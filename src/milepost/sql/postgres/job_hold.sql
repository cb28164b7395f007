-- Holds a job for the rest of the transaction. No row back means the lease was lost. The commit
-- follows at once: the server does not wait long for it, since whoever recovers needs the row.
SELECT fence,
       set_config('idle_in_transaction_session_timeout',
                  coalesce(nullif(current_setting('milepost.idle', true), ''), '10s'), true)
  FROM job WHERE id = :id AND fence = :fence AND state = 'RUNNING' FOR NO KEY UPDATE
