-- A page of what became of a step's jobs, in their order; of a run that was resumed, the successes.
SELECT id::text, ordinal, state, fence, phase, result, error, cause FROM job
 WHERE run_id = :run_id AND step = 0 AND (state = 'RUNNING' OR state <> 'RUNNING')
   AND id > coalesce(:after::uuid, '00000000-0000-0000-0000-000000000000')
   AND (:ended::int = 0 OR state = 'SUCCEEDED')
 ORDER BY id
 LIMIT :most
