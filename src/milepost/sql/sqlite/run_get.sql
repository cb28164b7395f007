SELECT id, kind, kind_version, queue, priority, state, version, current_step, ending, phase, cause, mode, codec, payload, report, error, tags, tenant, unique_key, params_key, channel, trace, parent_id, rerun_of, resumes, policy, move, created_at, started_at, finished_at, deadline_at
  FROM run
 WHERE id = :id
