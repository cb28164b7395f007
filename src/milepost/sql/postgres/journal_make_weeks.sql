-- Partitions of the journal for this week and so many of the next.
INSERT INTO journal_upkeep (task, most) VALUES ('make weeks', :ahead) RETURNING done
