DELETE FROM job
 WHERE id IN (SELECT value FROM json_each(:id)) AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
   AND (SELECT count(*) FROM job AS newer
         WHERE newer.rerun_of = job.id AND newer.origin_id IS NOT NULL AND newer.run_id IS NULL) = 0
RETURNING id
