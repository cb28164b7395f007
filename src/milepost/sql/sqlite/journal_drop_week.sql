-- There are no partitions here.
SELECT 1 WHERE :history_us < 0 AND :most < 0
