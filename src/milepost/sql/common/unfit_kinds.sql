-- The kinds of which jobs wait for another signature.
SELECT DISTINCT kind, kind_version FROM job
 WHERE state = 'WAITING' AND unfit IS NOT NULL AND phase = 'unfit'
