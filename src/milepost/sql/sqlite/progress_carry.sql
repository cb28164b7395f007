-- A partition that is created again goes on where the one before it came to.
INSERT INTO progress (job_id, fence, fraction, next_offset, records, position, saves, done,
                      created_at, updated_at)
SELECT job.id, 0, progress.fraction, progress.next_offset, progress.records, progress.position,
       progress.saves, progress.done, {now}, {now}
  FROM job JOIN progress ON progress.job_id = job.rerun_of
 WHERE job.run_id = :run_id AND (job.state = 'RUNNING' OR job.state <> 'RUNNING')
