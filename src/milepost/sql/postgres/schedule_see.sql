-- Says that a running program declares these; seldom, because nobody needs to know it to the second.
UPDATE schedule SET seen_at = {now}
 WHERE name = ANY (:name::text[]) AND seen_at < {now} - :every_us{micros}
