-- Switched on for whoever follows; what was left out before is not to be missed unnoticed.
UPDATE feed_switch
   SET since = CASE WHEN until = 0 THEN (SELECT coalesce(max(place), 0) FROM feed) ELSE since END,
       until = {now} + :keep_us
 WHERE until < {now} + :keep_us / 2
RETURNING id
