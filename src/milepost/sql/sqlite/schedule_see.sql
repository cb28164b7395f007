-- Says that a running program declares these; seldom, because nobody needs to know it to the second.
UPDATE schedule SET seen_at = {now}
 WHERE name IN (SELECT value FROM json_each(:name)) AND seen_at < {now} - :every_us
