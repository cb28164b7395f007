-- Slots that pass meanwhile are skipped: it goes on with the next one.
UPDATE schedule
   SET paused = :paused, next_at = coalesce(:next_at, next_at),
       paused_at = CASE WHEN :paused THEN {now} END, paused_by = :actor
 WHERE name = :name
