-- Not FOR UPDATE: a publication's foreign key shares the run's key, and two settlers that both share
-- it could never both have it whole.
SELECT state, version, current_step, ending, cause FROM run WHERE id = :id FOR NO KEY UPDATE
