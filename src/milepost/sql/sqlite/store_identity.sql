-- Which database this is: the file that was opened.
SELECT file FROM pragma_database_list WHERE name = 'main'
