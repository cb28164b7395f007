SELECT s.kind, s.kind_version, s.queue, s.priority, s.retries, s.poll_limit, s.poison_limit,
       s.timeout_us, s.deadline_us, s.start_within_us, s.policy, r.tenant, r.trace
  FROM step s JOIN run r ON r.id = s.run_id
 WHERE s.run_id = :run_id AND s.number = :number
