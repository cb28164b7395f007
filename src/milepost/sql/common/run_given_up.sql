-- Whether a run ended, or was told to, before it was filled.
SELECT count(*) FROM journal
 WHERE subject_id = :id AND machine = 'run' AND from_state = 'CREATED'
   AND move IN ('stop', 'fail', 'cancel')
