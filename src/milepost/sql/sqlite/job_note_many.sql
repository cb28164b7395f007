-- packed
-- Records a phase of many running attempts. No row back means that the lease was lost.
WITH i AS MATERIALIZED {rows:id fence phase detail}
SELECT json_group_array(json_array(job.id)), NULL, json_group_array(job.rowid)
  FROM i CROSS JOIN job
 WHERE job.id = i.id AND job.fence = i.fence AND +job.state = 'RUNNING'
-- then
WITH i AS MATERIALIZED {rows:id fence phase detail}
UPDATE job
   SET move = 'note', version = version + 1, phase = i.phase, detail = i.detail,
       actor = coalesce(:actor, job.worker_id)
  FROM i
 WHERE job.id = i.id AND +job.rowid IN (SELECT value FROM json_each(:picked))
