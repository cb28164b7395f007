-- Held runs that nobody sealed in time (H-107).
SELECT {text:id} FROM run WHERE state = 'CREATED' AND due_at <= {now} ORDER BY due_at LIMIT :most
