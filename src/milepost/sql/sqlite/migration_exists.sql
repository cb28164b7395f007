-- Whether there is a store: a program's own table of that name has no checksums.
SELECT 1 FROM pragma_table_info('migration') WHERE name = 'checksum'
