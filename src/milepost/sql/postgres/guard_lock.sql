-- Two that create one table at the same time would fail: the second waits for the first to commit.
SELECT pg_advisory_xact_lock(hashtext('milepost_fence'))
