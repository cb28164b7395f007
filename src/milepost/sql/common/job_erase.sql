UPDATE job
   SET move = 'erase', version = version + 1, actor = :actor, detail = NULL,
       payload = NULL, result = NULL, error = NULL
 WHERE id = :id AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')
RETURNING version
