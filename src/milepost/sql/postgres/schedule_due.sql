-- When each of these fires next: microseconds until then, negative when overdue.
SELECT name, (extract(epoch FROM next_at - {now}) * 1000000)::bigint
  FROM schedule
 WHERE name = ANY (:name::text[]) AND NOT paused
 ORDER BY next_at
