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
