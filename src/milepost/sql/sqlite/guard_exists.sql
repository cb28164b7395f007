-- Whether a database of the user's own has the table of fences.
SELECT count(*) FROM pragma_table_info('milepost_fence') WHERE name = 'fence'
