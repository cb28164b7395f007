-- each
INSERT INTO step (run_id, number, name, role, kind, kind_version, queue, gated, opened, poll_us, policy,
                  slots, priority, retries, poll_limit, poison_limit, timeout_us, deadline_us,
                  start_within_us, tolerance, fail_fast)
VALUES (:run_id, :number, :name, :role, :kind, :kind_version, :queue, :gated, :opened, :poll_us, :policy,
        :slots, :priority, :retries, :poll_limit, :poison_limit, :timeout_us, :deadline_us,
        :start_within_us, :tolerance, :fail_fast)
