-- Schedules.

-- name: schedule_declare
-- Another line or zone is another series of slots: it begins with the next one. Otherwise nothing
-- that was missed is forgotten.
INSERT INTO schedule (name, kind, cron, zone, missed, template, payload, declared_at, seen_at, next_at)
VALUES (:name, :kind, :cron, :zone, :missed, :template, :payload, {now}, {now}, :next_at)
ON CONFLICT (name) DO UPDATE
   SET kind = excluded.kind, cron = excluded.cron, zone = excluded.zone, missed = excluded.missed,
       template = excluded.template, payload = excluded.payload, seen_at = excluded.seen_at,
       declared_at = excluded.declared_at,
       next_at = CASE WHEN schedule.cron = excluded.cron AND schedule.zone = excluded.zone
                      THEN schedule.next_at ELSE excluded.next_at END

-- name: schedule_see
-- Says that a running program declares these; seldom, because nobody needs to know it to the second.
-- postgres
UPDATE schedule SET seen_at = {now}
 WHERE name = ANY (:name::text[]) AND seen_at < {now} - :every_us{micros}
-- sqlite
UPDATE schedule SET seen_at = {now}
 WHERE name IN (SELECT value FROM json_each(:name)) AND seen_at < {now} - :every_us

-- name: schedule_list
SELECT name, kind, cron, zone, missed, paused, paused_by, fired, {text:last_job_id}, last_at, next_at,
       seen_at + :vanished_us{micros} >= {now}, {now}
  FROM schedule
 ORDER BY schedule.name

-- name: schedule_due
-- When each of these fires next: microseconds until then, negative when overdue.
-- postgres
SELECT name, (extract(epoch FROM next_at - {now}) * 1000000)::bigint
  FROM schedule
 WHERE name = ANY (:name::text[]) AND NOT paused
 ORDER BY next_at
-- sqlite
SELECT name, next_at - {now}
  FROM schedule
 WHERE name IN (SELECT value FROM json_each(:name)) AND NOT paused
 ORDER BY next_at

-- name: schedule_take
-- postgres
-- No row back means that it is paused, not due, or in another scheduler's hand.
SELECT cron, zone, missed, template, payload, next_at, {now}
  FROM schedule
 WHERE name = :name AND NOT paused AND next_at <= {now}
   FOR UPDATE SKIP LOCKED
-- sqlite
-- No row back means that it is paused or not due (the transaction is the only one that writes).
SELECT cron, zone, missed, template, payload, next_at, {now}
  FROM schedule
 WHERE name = :name AND NOT paused AND next_at <= {now}

-- name: schedule_template
SELECT template, payload FROM schedule WHERE name = :name

-- name: schedule_fired
UPDATE schedule
   SET next_at = :next_at, fired = fired + :count,
       last_at = coalesce(:last_at, last_at), last_job_id = coalesce(:last_job_id, last_job_id)
 WHERE name = :name AND next_at = :was
RETURNING name

-- name: schedule_pause
-- Slots that pass meanwhile are skipped: it goes on with the next one.
UPDATE schedule
   SET paused = :paused, next_at = coalesce(:next_at, next_at),
       paused_at = CASE WHEN :paused THEN {now} END, paused_by = :actor
 WHERE name = :name
