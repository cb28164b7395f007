-- When each of these channels has something to deliver: microseconds until then, negative when overdue.
SELECT name, (SELECT due_at - {now}
                FROM outbox WHERE channel = channel.name AND delivered_at IS NULL AND dead_at IS NULL
                 AND (channel.tenant = '*' OR outbox.tenant = channel.tenant)
               ORDER BY due_at LIMIT 1)
  FROM channel
 WHERE name IN (SELECT value FROM json_each(:name)) AND stopped_at IS NULL
