SELECT producer_id, fence, run_id, total, published FROM publication
 WHERE published < total AND NOT withdrawn
   AND (:run_id IS NULL OR run_id IN (SELECT value FROM json_each(:run_id)))
 ORDER BY run_id, producer_id
 LIMIT :most
