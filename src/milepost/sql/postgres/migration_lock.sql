-- Two runners wait for each other; the lock goes with the transaction.
SELECT pg_advisory_xact_lock(7234511060511)
