-- The oldest partition of which nearly nothing is left.
INSERT INTO journal_upkeep (task, before, most)
VALUES ('drop a week', {now} - :history_us::bigint{micros}, :most)
RETURNING done
