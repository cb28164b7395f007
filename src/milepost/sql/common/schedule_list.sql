SELECT name, kind, cron, zone, missed, paused, paused_by, fired, {text:last_job_id}, last_at, next_at,
       seen_at, {now}
  FROM schedule
 ORDER BY schedule.name
