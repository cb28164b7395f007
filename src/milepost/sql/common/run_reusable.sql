-- The newest run with these parameters that goes on, however it was started (H-106).
SELECT {text:id} FROM run
 WHERE tenant = :tenant AND kind = :kind AND params_key = :params_key
   AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED') AND state <> 'STOPPING'
 ORDER BY run.id DESC
 LIMIT 1
