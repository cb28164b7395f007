-- Whether a database of the user's own has the table of fences.
SELECT to_regclass('milepost_fence') IS NOT NULL
