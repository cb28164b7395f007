-- Microseconds until something sleeping is due; negative when overdue.
SELECT min(due_at) - {now} FROM job WHERE state IN ('WAITING', 'RETRYING')
