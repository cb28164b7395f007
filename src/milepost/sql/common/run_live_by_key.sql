SELECT {text:id} FROM run
 WHERE tenant = :tenant AND kind = :kind AND unique_key = :unique_key
   AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
