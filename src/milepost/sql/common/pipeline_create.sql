INSERT INTO pipeline (name, measure, target, created_at)
VALUES (:name, :measure, :target, {now})
ON CONFLICT (name) DO NOTHING
