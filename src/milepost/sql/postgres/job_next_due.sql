-- Microseconds until something sleeping is due; negative when overdue.
SELECT (extract(epoch FROM min(due_at) - {now}) * 1000000)::bigint
  FROM job WHERE state IN ('WAITING', 'RETRYING')
