-- The owner's trigger does it, and answers with those of which anything was summed up.
INSERT INTO journal_upkeep (task, subject_id, before, most)
SELECT 'sum up', due.id, {now} - :history_us::bigint{micros}, :most
  FROM unnest(:id::uuid[]) AS due (id)
RETURNING subject_id::text
