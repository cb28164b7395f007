-- No job stays claimable with a spent budget (H-21). (A comparison with a column on its right is turned
-- around by SQLite, and then no longer that of the index: the whole table would be walked.)
UPDATE job
   SET state = 'FAILED', move = 'reject', cause = 'attempts_exhausted', version = version + 1,
       actor = :actor, detail = 'budget spent', finished_at = {now}
 WHERE rowid IN (SELECT rowid FROM job
                  WHERE (losses - poison_limit >= -1 OR errors + losses - retries > 0
                         OR (losses > 0 AND errors + losses - retries = 0))
                    AND state IN ('WAITING', 'READY', 'QUEUED', 'RETRYING')
                    AND errors + losses - retries > 0
                  LIMIT :most)
RETURNING id, run_id, step
