-- Not FOR UPDATE: a publication's foreign key shares the run's key, and two settlers that both share
-- it could never both have it whole.
SELECT id::text, state, version, current_step, ending FROM run
 WHERE id = ANY (ARRAY(SELECT unnest(:id::uuid[])))
 ORDER BY run.id
   FOR NO KEY UPDATE
