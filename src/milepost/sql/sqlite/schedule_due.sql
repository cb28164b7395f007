-- When each of these fires next: microseconds until then, negative when overdue.
SELECT name, next_at - {now}
  FROM schedule
 WHERE name IN (SELECT value FROM json_each(:name)) AND NOT paused
 ORDER BY next_at
