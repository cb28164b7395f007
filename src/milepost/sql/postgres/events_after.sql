-- What :mark sees and :base did not, whatever the order in which transactions began; after :key.
SELECT jsonb_build_array(j.at, j.subject_id, j.machine, j.seq)::text,
       j.machine, {text:j.subject_id}, j.seq, j.move, j.from_state, j.to_state, j.at, j.actor, j.fence,
       coalesce(job.kind, run.kind), coalesce(job.queue, run.queue),
       coalesce(job.tenant, run.tenant), {text:job.run_id}, coalesce(job.trace, run.trace),
       step.role, job.ordinal
  FROM journal j
  LEFT JOIN job ON j.machine = 'job' AND job.id = j.subject_id
  LEFT JOIN run ON j.machine = 'run' AND run.id = j.subject_id
  LEFT JOIN step ON step.run_id = job.run_id AND step.number = job.step
 WHERE (j.xid >= pg_snapshot_xmax(:base::text::pg_snapshot)
        OR j.xid = ANY (ARRAY(SELECT pg_snapshot_xip(:base::text::pg_snapshot))))
   AND pg_visible_in_snapshot(j.xid, :mark::text::pg_snapshot)
   -- No move: it stands for old ones, which whoever is here has heard of.
   AND j.move <> 'snapshot'
   AND (:key::text = ''
        OR (j.at, j.subject_id, j.machine, j.seq)
           > ((nullif(:key::text, '')::jsonb ->> 0)::timestamptz,
              (nullif(:key::text, '')::jsonb ->> 1)::uuid,
              nullif(:key::text, '')::jsonb ->> 2,
              (nullif(:key::text, '')::jsonb ->> 3)::integer))
 ORDER BY j.at, j.subject_id, j.machine, j.seq
 LIMIT :most
