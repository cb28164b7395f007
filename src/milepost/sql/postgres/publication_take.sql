-- Nobody ever waits for these rows, so they may be held before the counters and the run.
SELECT producer_id::text, fence, run_id::text, total, published FROM publication
 WHERE published < total AND NOT withdrawn AND (:run_id::uuid[] IS NULL OR run_id = ANY (:run_id::uuid[]))
 ORDER BY publication.run_id, publication.producer_id
 LIMIT :most
   FOR UPDATE SKIP LOCKED
