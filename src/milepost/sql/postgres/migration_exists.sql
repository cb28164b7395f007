-- Whether there is a store: a program's own table of that name has no checksums.
SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('migration') AND attname = 'checksum'
