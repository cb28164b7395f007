-- There are no partitions here.
SELECT 1 WHERE :ahead < 0
