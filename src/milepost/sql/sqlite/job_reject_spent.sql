-- No job stays claimable with a spent budget (H-21).
UPDATE job
   SET state = 'FAILED', move = 'reject', cause = 'attempts_exhausted', version = version + 1,
       actor = :actor, detail = 'budget spent', finished_at = {now}
 WHERE rowid IN (SELECT rowid FROM job
                  WHERE errors + losses > retries
                    AND state IN ('WAITING', 'READY', 'QUEUED', 'RETRYING')
                  LIMIT :most)
RETURNING id, run_id, step
