-- Compares and sets. No row back: somebody else has moved it.
UPDATE pipeline
   SET mark = :mark, version = version + 1, move = 'advance', actor = :actor, reason = NULL, last_run_id = :run_id,
       last_run_completed_at = {now}, dataset_version = dataset_version + 1,
       rules_digest = coalesce(CAST(:rules_digest AS text), rules_digest)
 WHERE id = :pipeline_id AND mark IS NOT DISTINCT FROM CAST(:before_mark AS bigint)
RETURNING mark
