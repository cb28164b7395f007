-- Every entry can be followed at any time.
SELECT :keep_us::bigint
