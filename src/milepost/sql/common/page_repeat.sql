-- Counts a page that came again: B's SkipDuplicate and SkipCompleted.
UPDATE progress
   SET duplicates = duplicates + :duplicate, completions = completions + :completed
 WHERE job_id = :id
