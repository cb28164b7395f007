-- No row back means that it is paused, not due, or in another scheduler's hand.
SELECT cron, zone, missed, template, payload, next_at, {now}
  FROM schedule
 WHERE name = :name AND NOT paused AND next_at <= {now}
   FOR UPDATE SKIP LOCKED
