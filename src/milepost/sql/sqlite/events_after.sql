SELECT CAST(f.place AS TEXT),
       j.machine, {text:j.subject_id}, j.seq, j.move, j.from_state, j.to_state, j.at, j.actor, j.fence,
       coalesce(job.kind, run.kind), coalesce(job.queue, run.queue),
       coalesce(job.tenant, run.tenant), {text:job.run_id}, coalesce(job.trace, run.trace),
       step.role, job.ordinal
  FROM feed f
  JOIN journal j ON j.subject_id = f.subject_id AND j.machine = f.machine AND j.seq = f.seq
  LEFT JOIN job ON j.machine = 'job' AND job.id = j.subject_id
  LEFT JOIN run ON j.machine = 'run' AND run.id = j.subject_id
  LEFT JOIN step ON step.run_id = job.run_id AND step.number = job.step
 WHERE f.place > max(CAST(:base AS INTEGER), CAST(:key AS INTEGER)) AND f.place <= CAST(:mark AS INTEGER)
   -- No move: it stands for old ones, which whoever is here has heard of.
   AND j.move <> 'snapshot'
 ORDER BY f.place
 LIMIT :most
