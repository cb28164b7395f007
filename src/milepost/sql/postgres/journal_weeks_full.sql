-- How large the default partition is, where it is so large that no more weeks are made.
SELECT size FROM milepost_default_size() AS size WHERE size > milepost_default_most()
