-- The steps of a resumed run as they were pinned, with their gates closed again.
INSERT INTO step (run_id, number, name, role, kind, kind_version, queue, gated, opened, poll_us,
                  policy, slots, priority, retries, poll_limit, poison_limit, timeout_us, deadline_us,
                  start_within_us, tolerance,
                  fail_fast)
SELECT :new_id, number, name, role, kind, kind_version, queue, gated,
       NOT gated OR number = (SELECT min(number) FROM step WHERE run_id = :old_id), poll_us,
       policy, slots, priority, retries, poll_limit, poison_limit, timeout_us, deadline_us,
       start_within_us, tolerance,
       fail_fast
  FROM step
 WHERE run_id = :old_id
