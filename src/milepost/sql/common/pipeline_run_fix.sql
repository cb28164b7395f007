-- Fixes the end of the window and the rules, once: whoever comes second reads what is fixed (H-69).
UPDATE pipeline_run
   SET end_mark = coalesce(end_mark, :end_mark), rules = :rules, rules_digest = :rules_digest
 WHERE run_id = :run_id AND rules_digest IS NULL
