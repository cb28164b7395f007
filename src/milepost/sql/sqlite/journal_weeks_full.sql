-- There are no partitions here.
SELECT 1 WHERE false
