-- A page of what became of a step's jobs, in their order; of a run that was resumed, the successes.
SELECT id, ordinal, state, fence, phase, result, error, cause FROM job
 WHERE run_id = :run_id AND step = 0 AND id > coalesce(:after, '')
   AND (:ended = 0 OR state = 'SUCCEEDED')
 ORDER BY id
 LIMIT :most
