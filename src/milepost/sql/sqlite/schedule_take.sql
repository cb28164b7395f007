-- No row back means that it is paused or not due (the transaction is the only one that writes).
SELECT cron, zone, missed, template, payload, next_at, {now}
  FROM schedule
 WHERE name = :name AND NOT paused AND next_at <= {now}
