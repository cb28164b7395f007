-- For this transaction: a partition is not worth a long wait.
SELECT set_config('statement_timeout', '5s', true)
