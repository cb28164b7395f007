UPDATE schedule
   SET next_at = :next_at, fired = fired + :count,
       last_at = coalesce(:last_at, last_at), last_job_id = coalesce(:last_job_id, last_job_id)
 WHERE name = :name AND next_at = :was
RETURNING name
