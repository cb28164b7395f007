INSERT INTO step (run_id, number, name, role, kind, kind_version, queue, gated, opened, poll_us, policy,
                  slots, priority, retries, poll_limit, poison_limit, timeout_us, deadline_us,
                  start_within_us, tolerance, fail_fast)
SELECT :run_id, t.*
  FROM unnest(:number::integer[], :name::text[], :role::text[], :kind::text[],
              :kind_version::integer[], :queue::text[], :gated::boolean[], :opened::boolean[],
              :poll_us::bigint[], :policy::text[], :slots::smallint[], :priority::smallint[],
              :retries::integer[], :poll_limit::integer[], :poison_limit::integer[],
              :timeout_us::bigint[], :deadline_us::bigint[], :start_within_us::bigint[],
              :tolerance::double precision[], :fail_fast::boolean[])
       AS t (number, name, role, kind, kind_version, queue, gated, opened, poll_us, policy, slots,
             priority, retries, poll_limit, poison_limit, timeout_us, deadline_us,
             start_within_us, tolerance, fail_fast)
