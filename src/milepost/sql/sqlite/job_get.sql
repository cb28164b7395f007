SELECT id, kind, kind_version, queue, priority, state, version, fence, worker_id, phase, cause, errors, losses, polls, releases, retries, poll_limit, poison_limit, timeout_us, codec, payload, result, error, tags, tenant, unique_key, channel, trace, run_id, step, ordinal, parent_id, rerun_of, origin_id, (SELECT max(newer.id) FROM job AS newer WHERE newer.rerun_of = job.id), cancel_reason, move, policy, (SELECT fraction FROM progress WHERE job_id = job.id), (SELECT message FROM progress WHERE job_id = job.id), due_at, created_at, started_at, finished_at, deadline_at
  FROM job
 WHERE id = :id
