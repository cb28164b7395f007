-- When each of these channels has something to deliver: microseconds until then, negative when overdue.
SELECT name, (SELECT (extract(epoch FROM due_at - {now}) * 1000000)::bigint
                FROM outbox WHERE channel = channel.name AND delivered_at IS NULL AND dead_at IS NULL
                 AND (channel.tenant = '*' OR outbox.tenant = channel.tenant)
               ORDER BY due_at LIMIT 1)
  FROM channel
 WHERE name = ANY (:name::text[]) AND stopped_at IS NULL
