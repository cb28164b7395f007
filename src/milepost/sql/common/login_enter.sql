INSERT INTO source_budget (name, free_at, blocked_until)
VALUES (:name, {now}, {now})
ON CONFLICT (name) DO NOTHING
