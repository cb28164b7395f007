-- idle
-- The claiming statement itself begins the run, so that both commit together.
SELECT :id::uuid[], :actor::text WHERE false
